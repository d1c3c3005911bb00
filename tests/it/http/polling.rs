//! Hosts that come for their answers.

use super::*;
use tokio::task::JoinSet;

#[tokio::test]
async fn many_hosts_wait_at_once_and_each_gets_its_own_answer() {
    const WAITS: usize = 60;
    let daemon = keyed().start().await;
    for n in 0..WAITS {
        daemon.api().post("/v1/waits", &envelope("t", &format!("q{n}"))).await.expect(202);
    }
    let mut polls = JoinSet::new();
    for n in (0..WAITS).chain(0..WAITS) {
        let api = daemon.api().clone();
        polls.spawn(async move {
            let reply = api.get(&format!("/v1/waits/q{n}/answer?wait=60s")).await.expect(200);
            assert_eq!(reply.json()["answer"], json!(n));
        });
    }
    for n in 0..WAITS {
        let given = answer("t", &format!("q{n}"), json!(n));
        daemon.api().post("/v1/answers", &given).await.expect(200);
    }
    while let Some(done) = polls.join_next().await {
        done.unwrap();
    }
}

#[tokio::test]
async fn a_poll_is_told_when_the_question_is_withdrawn() {
    let daemon = keyed().start().await;
    daemon.api().post("/v1/waits", &envelope("t", "a/b 100%")).await.expect(202);
    let api = daemon.api().clone();
    let poll =
        tokio::spawn(async move { api.get("/v1/waits/a%2Fb%20100%25/answer?wait=60s").await });
    daemon.api().post("/v1/waits/-/cancel?question_id=a/b+100%25", &json!({})).await.expect(200);
    let told = poll.await.unwrap().expect(410);
    assert_eq!(told.code(), "wait-closed");
    assert_eq!(told.json()["error"]["details"]["state"], "cancelled");
}

#[tokio::test]
async fn a_poll_without_an_answer_ends_in_time() {
    let daemon = keyed().start().await;
    daemon.api().post("/v1/waits", &envelope("t", "q")).await.expect(202);
    daemon.api().get("/v1/waits/q/answer?wait=200ms").await.expect(204);
    let reply = daemon.api().get("/v1/waits/q/answer?wait=61s").await.expect(400);
    assert_eq!(reply.json()["error"]["details"]["field"], "wait");
}
