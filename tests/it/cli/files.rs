//! `task submit --file --keep`, `task artifacts` and `task diff`.

use std::fs;
use std::os::unix::fs::symlink;

use super::*;

/// Uploads a file of the run of this task.
async fn leaves(run: &Run<'_>, kind: &str, name: &str, content: &[u8]) {
    let query = format!("artifacts?task_id={}&lease_id={}&type={kind}&name={name}", run.task.id, run.lease);
    run.api.post_bytes(&query, content).await.created();
}

#[test]
fn files_go_with_a_task_and_come_back() {
    run(async {
        let server = sqlite();
        let (user, crew) = (User::at(server), server.crew());
        let worker = crew.worker().register().await;
        fs::write(user.home.join("plan.md"), "the plan").unwrap();
        fs::write(user.home.join("large.bin"), vec![7; 2 << 20]).unwrap();
        let made = std::process::Command::new("mkfifo").arg(user.home.join("pipe")).status().unwrap();
        assert!(made.success());
        let pipe = user.home.join("pipe");
        let writer = std::thread::spawn(move || fs::write(pipe, "of a command").unwrap());
        let said = user.does(&["task", "submit", "--agent", &crew.slug, "--keep", "/etc/*", "p"]).complains(2);
        assert!(said.contains("--keep: number 1: The glob '/etc/*' must be relative"), "{said}");
        let submit = ["task", "submit", "--agent", &crew.slug, "--keep", "out/**", "--keep", "*.log"];
        let flags = [&submit[..], &["--file", "plan.md", "--file", "in/data=large.bin", "--file", "piped.txt=pipe", "Do it"]].concat();
        let id = user.does(&flags).ok().trim().to_owned();
        writer.join().unwrap();
        let task = server.task(&id).now().await;
        let inputs: Vec<_> =
            task["inputs"].as_array().unwrap().iter().map(|input| (&input["path"], &input["bytes"], &input["content_type"])).collect();
        assert_eq!(
            inputs,
            [
                (&json!("plan.md"), &json!(8), &json!("text/markdown")),
                (&json!("in/data"), &json!(2 << 20), &json!("application/octet-stream")),
                (&json!("piped.txt"), &json!(12), &json!("text/plain")),
            ]
        );
        assert_eq!(task["outputs"], json!(["out/**", "*.log"]));
        for (file, said) in [("nowhere", "nowhere"), (".", "NAME=PATH"), ("../x=plan.md", ".."), ("x=.", "it is no file")] {
            let complaint = user.does(&[&submit[..], &["--file", file, "p"]].concat()).complains(2);
            assert!(complaint.contains(said), "{complaint}");
        }

        let none = user.does(&["task", "diff", &id]).complains(1);
        assert!(none.contains("has no diff") && none.contains("--project"), "{none}");
        let run = Run::claimed_by(&worker).await;
        leaves(&run, "OUTPUT", "out/r.txt", b"earlier").await;
        leaves(&run, "OUTPUT", "out/r.txt", b"report").await;
        leaves(&run, "OUTPUT", "a.log", b"log").await;
        leaves(&run, "GIT_DIFF", "b.patch", b"+\xffadded\n").await;
        run.answers("done").await;
        let listed = user.does(&["task", "artifacts", &id]).ok();
        assert!(["out/r.txt", "a.log", "b.patch", "GIT_DIFF", "LLM_RESULT"].iter().all(|text| listed.contains(text)), "{listed}");
        assert_eq!(user.does(&["task", "artifacts", &id, "-o", "json"]).json().as_array().unwrap().len(), 5);
        let answers = user.does(&["task", "artifacts", &id, "--kind", "answer", "-o", "json"]).json();
        let files = user.does(&["task", "artifacts", &id, "--kind", "file", "-o", "json"]).json();
        assert_eq!(answers.as_array().unwrap().len() + files.as_array().unwrap().len(), 5);
        assert!(answers.as_array().unwrap().iter().all(|answer| answer["name"].is_null()), "{answers}");
        user.does(&["task", "artifacts", &id, "--download", "into"]).ok();
        let read = |name: &str| fs::read(user.home.join("into").join(name)).unwrap();
        assert_eq!((read("out/r.txt"), read("a.log"), read("b.patch")), (b"report".to_vec(), b"log".to_vec(), b"+\xffadded\n".to_vec()));
        fs::write(user.home.join("into/a.log"), "mine").unwrap();
        let said = user.does(&["task", "artifacts", &id, "--download", "into"]).complains(1);
        assert!(said.contains("a.log") && said.contains("--force"), "{said}");
        assert_eq!(read("a.log"), b"mine");
        user.does(&["task", "artifacts", &id, "--download", "into", "--force"]).ok();
        assert_eq!(read("a.log"), b"log");
        // A link in the directory leads nowhere.
        fs::create_dir_all(user.home.join("other/kept")).unwrap();
        fs::create_dir(user.home.join("linked")).unwrap();
        symlink(user.home.join("other/kept"), user.home.join("linked/out")).unwrap();
        let said = user.does(&["task", "artifacts", &id, "--download", "linked", "--force"]).complains(1);
        assert!(said.contains("symbolic link"), "{said}");
        assert_eq!(fs::read_dir(user.home.join("other/kept")).unwrap().count(), 0);
        let none = user.does(&["task", "artifacts", &"f".repeat(32)]).complains(1);
        assert!(none.contains("not found"), "{none}");
    });
}

#[test]
fn a_diff_is_printed_as_it_is() {
    run(async {
        let server = sqlite();
        let (user, crew) = (User::at(server), server.crew());
        let worker = crew.worker().register().await;
        let task = crew.task().create().await;
        let run = Run::claimed_by(&worker).await;
        leaves(&run, "GIT_DIFF", "a.patch", b"-old\n").await;
        leaves(&run, "GIT_DIFF", "a.patch", b"-old\n+new\n\tx\n").await;
        run.answers("done").await;
        assert_eq!(user.does(&["task", "diff", &task.id]).ok(), "-old\n+new\n\tx\n");
    });
}
