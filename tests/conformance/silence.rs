//! A daemon that falls silent in the midst of a transaction, such as behind a pulled cable, holds what
//! it locked until PostgreSQL ends its session. Only what needs just that may wait for it.

use crate::kit::{announcing, answer, ask, at, open_postgres};
use answerback::core::AnswerOutcome;
use answerback_testkit::PATIENCE;
use answerback_testkit::postgres::database;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Far below what the silent daemon's session lives: twice what a batch waits for a lock, and time for a
/// slow machine.
const SOON: Duration = Duration::from_secs(8);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_silent_daemon_holds_holds_nothing_else_back() {
    let database = database().await;
    let store = open_postgres(database.url(), announcing(&["a"])).await;
    for id in ["held", "other"] {
        ask("t", id).send(&*store, at(0)).await;
    }
    let silent = database.connect().await;
    silent
        .batch_execute("BEGIN; SELECT 1 FROM waits WHERE question_id = 'held' FOR UPDATE")
        .await
        .unwrap();

    // Asked again and again, as hosts do that get no reply, amid everything else.
    let (mut held, mut others) = (JoinSet::new(), JoinSet::new());
    for n in 0..120 {
        let store = store.clone();
        if n % 20 == 0 {
            held.spawn(async move {
                store.publish(vec![ask("t", "held").publish()], at(1)).await.is_ok()
            });
        } else {
            others.spawn(async move { ask("t", &format!("q{n}")).send(&*store, at(1)).await });
        }
    }
    let answered = store.answer(answer("t", "other", "1"), at(1));
    let answered = timeout(SOON, answered).await.expect("an answer to another wait").unwrap();
    assert_eq!(answered.outcome, AnswerOutcome::Accepted);
    let done =
        timeout(SOON, async { while others.join_next().await.transpose().unwrap().is_some() {} });
    done.await.expect("publishes of other waits");

    // Whoever needs what is held is told so, and not kept for long.
    let told = timeout(PATIENCE, held.join_next()).await.expect("a reply").unwrap().unwrap();
    assert!(!told, "the wait is locked");
    silent.batch_execute("ROLLBACK").await.unwrap();
    let again = ask("t", "held");
    timeout(PATIENCE, again.send(&*store, at(2))).await.expect("a reply once nobody holds it");
}
