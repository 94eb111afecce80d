//! `project add`, `edit`, `list`, `show`, `clone`, `propagate` and `rm`.

use super::*;
use crate::support::repository::git;
use crate::support::stub::{Reply, Stub};

const REPO: &str = "https://git.example.com/team/docs.git";

#[test]
fn a_project_is_added_cloned_and_deleted() {
    run(async {
        let crew = sqlite().crew();
        let user = User::at(crew.api);
        let stub = Stub::start().await;
        let worker = crew.worker_at(&stub.url).register().await;
        let name = worker.name.as_str();
        let added = user.does(&["project", "add", name, REPO, "--worker", name, "--branch-prefix", "bots"]).ends(0);
        assert!(
            added.err.contains("Nothing was checked yet: the first run fetches it.") && added.err.contains(&format!("--project {name}")),
            "{}",
            added.err
        );
        let added = added.out;
        assert!(added.contains("NAME") && added.contains(name) && added.contains("pending"), "{added}");
        assert!(user.does(&["project", "show", name]).ends(0).out.contains("bots"));
        let refused = user.does(&["project", "edit", name, "--branch-prefix", "a..b"]).ends(2).err;
        assert!(refused.contains("branch_prefix"), "{refused}");
        let edited = user.does(&["project", "edit", name, "--branch-prefix", "robots"]).ends(0).out;
        assert!(edited.contains("PREFIX") && edited.contains("robots"), "{edited}");
        let again = user.does(&["project", "add", name, REPO]).ends(0);
        assert!(again.err.contains("exists already, with this repository; nothing was changed"), "{}", again.err);
        assert!(again.out.contains("robots"), "{}", again.out);
        let other = user.does(&["project", "add", name, "https://git.example.com/team/other.git"]).ends(1).err;
        assert!(other.contains(&format!("with the repository {REPO}: choose another name")) && other.contains("project rm"), "{other}");
        let other = user.does(&["project", "add", name, REPO, "--branch-prefix", "bots"]).ends(1).err;
        assert!(other.contains(&format!("project edit {name} --branch-prefix bots")), "{other}");
        assert!(user.does(&["project", "show", name]).ends(0).err.contains("project clone"));

        stub.once("/clone", Reply::new(507, "no room"));
        let failed = user.does(&["project", "clone", name]).ends(1).err;
        assert!(failed.contains("Agent returned 507: no room"), "{failed}");
        stub.always("/clone", Reply::new(401, r#"{"error":"Unauthorized"}"#));
        let refused = user.does(&["project", "clone", name]).ends(1).err;
        assert!(refused.contains("Agent returned 401") && refused.contains("MEMBRIDGE_AGENT_KEY is not the key of the agent"), "{refused}");
        stub.always("/clone", Reply::new(200, r#"{"status":"cloned","path":"/p"}"#));
        assert!(user.does(&["project", "clone", name]).ends(0).err.contains(&format!("is cloned on worker {name}")));
        let shown = user.does(&["project", "show", name]).ends(0).out;
        assert!(shown.contains("cloned") && shown.contains("/p"), "{shown}");
        let id = user.does(&["project", "show", name, "-o", "json"]).json()["id"].as_str().expect("an id").to_owned();
        assert_eq!(user.does(&["project", "show", &id, "-o", "json"]).json()["nodes"][0]["node_id"], name);

        let other = crew.worker_at(&stub.url).register().await;
        let spread = user.does(&["project", "propagate", name, "--worker", &other.name]).ends(0).err;
        assert!(spread.contains(&format!("{}: cloned", other.name)) && spread.contains("synced"), "{spread}");
        let partly = user.does(&["project", "propagate", name, "--worker", "nobody"]).ends(1).err;
        assert!(partly.contains("not found or has no URL") && partly.contains("1 worker could not clone"), "{partly}");
        assert!(user.does(&["project", "list", "--limit", "1000"]).ends(0).out.contains(name));

        let asks = user.does(&["project", "rm", name]).complains(2);
        assert!(asks.contains("this would delete 1 project") && asks.contains("--yes"), "{asks}");
        let gone = user.does(&["project", "rm", name, "nope"]).complains(1);
        assert!(gone.contains("there is no project 'nope'") && !gone.contains("this would"), "{gone}");
        assert!(user.types("n\n", &["project", "rm", name]).ends(0).out.contains("Nothing was changed"));
        assert!(user.does(&["project", "rm", "--yes", name]).ends(0).err.contains("is deleted"));
        let gone = user.does(&["project", "rm", "--yes", name]).ends(1).err;
        assert!(gone.contains("project list"), "{gone}");
    });
}

#[test]
fn a_project_gets_the_name_of_its_repository() {
    run(async {
        let server = Server::on(Database::Sqlite).start();
        let user = User::at(&server);
        let added = user.does(&["project", "add", "https://git.example.com/team/manual.git"]).ends(0);
        let nobody = user.does(&["project", "propagate", "manual"]).ends(0).err;
        assert!(nobody.contains("No worker listens for pushes. Workers fetch it when they run its tasks."), "{nobody}");
        assert!(added.err.contains("The name of the project is manual.") && !added.err.contains("no commit yet"), "{}", added.err);
        git(user.home(), &["init", "--quiet", "site"]);
        let added = user.does(&["project", "add", "site/."]).ends(0);
        for told in ["The name of the project is site.", "The repository has no commit yet: its tasks fail until it has one."] {
            assert!(added.err.contains(told), "{}", added.err);
        }
        let wrong = user.does(&["project", "add", "manuals"]).complains(2);
        assert!(wrong.contains("manuals is neither a URL nor a directory here") && wrong.contains("project add NAME URL|DIR"), "{wrong}");
    });
}

#[test]
fn a_task_that_never_began_has_no_diff() {
    run(async {
        let server = Server::on(Database::Sqlite).start();
        let user = User::at(&server);
        user.does(&["project", "add", "docs", REPO]).ok();
        let id = user.does(&["task", "submit", "--suspend", "--project", "docs", "p"]).ok().trim_end().to_owned();
        user.does(&["task", "cancel", &id]).ok();
        let none = user.does(&["task", "diff", &id]).complains(1);
        assert!(none.contains("it ended before its run began; see: bloom-runtime task describe"), "{none}");
    });
}
