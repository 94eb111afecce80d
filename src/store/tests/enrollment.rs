//! Tests that a join token that names no worker enrolls only an unused name, even while another replica registers a worker under that name.

use super::*;

fn enroll(worker: &str) -> Op {
    Op::Enroll(op::Enroll { token: "join".into(), token_digest: "t".into(), worker: worker.into(), digest: "d".into(), instance: None })
}

fn registration(name: &str) -> Op {
    Op::RegisterWorker(Box::new(WorkerChange { id: name.into(), actor: Actor::Api, ..WorkerChange::default() }))
}

/// `Short` gives up after 50 ms, so a registration that waits for the enrollment is an error here.
async fn try_register(writer: &mut Box<dyn Writer>, name: &str) -> Result<(), Error> {
    let op = registration(name);
    let mut set = WorkingSet::new(writer.begin_and_load(&op.keys(), LockWait::Short).await?, seed());
    decide(&mut set, &Command::from(op)).expect("is allowed");
    writer.save(&set, None).await
}

#[test]
fn no_worker_is_registered_between_the_check_of_its_name_and_its_enrollment() {
    support::run(async {
        let bench = Bench::new(Database::Postgres).await;
        let (mut one, mut other) = (bench.writer().await, bench.writer().await);
        register(&mut one, "known", 1).await;

        let loaded = one.begin_and_load(&enroll("new").keys(), LockWait::Long).await.unwrap();
        assert!(matches!(WorkingSet::new(loaded, seed()).observed_worker("new"), Ok(None)), "the name is free");
        let registered = try_register(&mut other, "new").await;
        assert!(matches!(registered, Err(Error::Locked(_))), "it waits for the enrollment: {registered:?}");
        other.rollback().await.unwrap();
        try_register(&mut other, "known").await.expect("workers that are known go on");
        one.rollback().await.unwrap();
        try_register(&mut other, "new").await.expect("the enrollment is over");

        let refused = {
            let token = op::CreateKey {
                name: "join".into(),
                digest: "t".into(),
                scope: bloom_core::api_key::Scope::Join,
                worker: None,
                push: false,
                namespaces: None,
                lasts_ms: None,
                quota: bloom_core::api_key::Quota::default(),
                team: None,
            };
            commit(&mut one, vec![Op::CreateKey(token)]).await;
            try_commit(&mut one, &[enroll("new")]).await.unwrap().remove(0)
        };
        assert!(matches!(refused, Err(Rejection::WorkerTaken(_))), "{refused:?}");
    });
}
