//! Answering, and coming for the answer.

use super::*;
use serde_json::json;
use std::time::Duration;

#[tokio::test]
async fn the_first_answer_wins_and_the_same_again_is_accepted() {
    let bench = Bench::new().await;
    bench.ask("t", "q").await;
    let got = bench.post("/v1/answers", answer("t", "q", "{\"a\":1.0,\"b\":[]}")).await.expect(200);
    assert_eq!(got.text(), "{\"status\":\"accepted\"}");
    bench.post("/v1/answers", answer("t", "q", " {\"b\":[ ],\"a\":1}")).await.expect(200);
    let got = bench.post("/v1/answers", answer("t", "q", "2")).await.refused(409, "wait-closed");
    assert_eq!(got.json()["error"]["details"], json!({"state": "completed", "generation": 1}));
    let shown = bench.get("/v1/waits/q").await.json();
    assert_eq!(shown["answer"]["answered_by"], "key: ops");
    assert_eq!(shown["answer"]["answered_via"], "api");
    assert_eq!(shown["deliveries"][0]["route"], "pull");
}

#[tokio::test]
async fn every_json_value_is_an_answer_and_comes_out_as_it_went_in() {
    let bench = Bench::new().await;
    let values =
        ["null", "false", "0", "\"\"", "[]", "{}", "1.10", "12345678901234567890123", "1E400"];
    for (n, value) in values.iter().enumerate() {
        let id = format!("q{n}");
        bench.ask("t", &id).await;
        bench.post("/v1/answers", answer("t", &id, value)).await.expect(200);
        let got = bench.get(&format!("/v1/waits/{id}/answer")).await.expect(200);
        assert_eq!(
            got.text(),
            format!("{{\"thread_id\": \"t\", \"question_id\": \"{id}\", \"answer\": {value}}}")
        );
    }
}

#[tokio::test]
async fn refusals_of_answers_have_their_codes() {
    let bench = Bench::with(keys(), Rules { enforce_allowed_actions: true, ..rules() }).await;
    bench
        .post("/v1/waits", envelope("t", "q", ",\"allowed_actions\":[\"approve\"]"))
        .await
        .expect(202);
    let post = async |body: &str| bench.post("/v1/answers", body.to_owned()).await;
    let got = post("{\"thread_id\":\"t\",\"question_id\":\"q\"}").await.refused(400, "bad-input");
    assert_eq!(got.json()["error"]["details"]["field"], "answer");
    post(&answer("t", "nothing", "1")).await.refused(404, "wait-not-found");
    post(&answer("other", "q", "1")).await.refused(404, "wait-not-found");
    let past = "1,\"valid_until\":\"2020-01-01T00:00:00Z\"";
    post(&answer("t", "q", past)).await.refused(400, "answer-expired");
    post(&answer("t", "q", "{\"action\":\"reject\"}")).await.refused(400, "action-not-allowed");
    post(&answer("t", "q", "1,\"generation\":2")).await.refused(404, "wait-not-found");
    post("{\"thread_id\":\"t\",\"question_id\":\"q\",\"answer\":1,\"answer\":2}")
        .await
        .refused(400, "bad-input");
    assert_eq!(bench.get("/v1/waits/q").await.json()["state"], "open");
    post(&answer("t", "q", "{\"action\":\"approve\"}")).await.expect(200);
}

#[tokio::test]
async fn an_answer_is_kept_until_the_host_says_that_it_has_it() {
    let bench = Bench::new().await;
    bench.ask("t", "q").await;
    bench.get("/v1/waits/q/answer").await.expect(204);
    bench.post("/v1/answers", answer("t", "q", "1")).await.expect(200);
    for _ in 0..2 {
        bench.get("/v1/waits/q/answer").await.expect(200);
    }
    for _ in 0..2 {
        let got = bench.delete("/v1/waits/q/answer").await.expect(204);
        assert!(got.body.is_empty());
    }
    assert_eq!(bench.get("/v1/waits/q").await.json()["deliveries"][0]["state"], "delivered");
    let got = bench.get("/v1/waits/q/answer").await.refused(410, "wait-closed");
    assert_eq!(got.json()["error"]["details"]["state"], "completed");
    bench.delete("/v1/waits/nothing/answer").await.refused(404, "not-found");
}

#[tokio::test]
async fn there_is_nothing_to_come_for_when_a_wait_ended_without_an_answer() {
    let bench = Bench::new().await;
    let soon = ",\"expires_at\":\"2027-01-15T08:00:10Z\"";
    bench.post("/v1/waits", envelope("t", "q", soon)).await.expect(202);
    let with_default = format!("{soon},\"default\":{{\"d\":1.50}}");
    bench.post("/v1/waits", envelope("t", "q2", &with_default)).await.expect(202);
    bench.clock.advance(Duration::from_secs(10));
    // Late by the clock, though no sweep came by.
    bench.post("/v1/answers", answer("t", "q", "1")).await.refused(409, "wait-closed");
    bench.sweep().await;
    let got = bench.get("/v1/waits/q/answer").await.refused(410, "wait-closed");
    assert_eq!(got.json()["error"]["details"]["state"], "timed-out");
    let got = bench.get("/v1/waits/q2/answer").await.expect(200);
    assert!(got.text().contains("\"answer\": {\"d\":1.50}"), "{}", got.text());
    assert_eq!(bench.get("/v1/waits/q2").await.json()["answer"]["answered_via"], "default");
}

#[tokio::test]
async fn an_answer_past_its_validity_is_not_handed_out() {
    let bench = Bench::new().await;
    bench.post("/v1/waits", envelope("t", "q", ",\"answer_ttl\":\"PT10S\"")).await.expect(202);
    bench.post("/v1/answers", answer("t", "q", "1")).await.expect(200);
    let got = bench.get("/v1/waits/q/answer").await.expect(200);
    assert!(got.text().contains("\"valid_until\": \"2027-01-15T08:00:10.000Z\""), "{}", got.text());
    bench.clock.advance(Duration::from_secs(10));
    bench.get("/v1/waits/q/answer").await.refused(410, "answer-expired");
}

#[tokio::test]
async fn a_long_poll_is_woken_by_the_answer() {
    let bench = Arc::new(Bench::new().await);
    bench.ask("t", "q").await;
    let polling = Arc::clone(&bench);
    let poll = tokio::spawn(async move { polling.get("/v1/waits/q/answer?wait=60s").await });
    bench.post("/v1/answers", answer("t", "q", "1")).await.expect(200);
    let got = tokio::time::timeout(Duration::from_secs(20), poll).await.unwrap().unwrap();
    assert!(got.expect(200).text().contains("\"answer\": 1"));
}

#[tokio::test]
async fn a_long_poll_follows_the_question_that_supersedes_its_own() {
    let bench = Arc::new(Bench::new().await);
    bench.ask("t", "q").await;
    let polling = Arc::clone(&bench);
    let poll = tokio::spawn(async move { polling.get("/v1/waits/q/answer?wait=60s").await });
    bench.post("/v1/waits", envelope("t", "q", "").replace("1.10", "2")).await.expect(202);
    bench.post("/v1/answers", answer("t", "q", "7,\"generation\":2")).await.expect(200);
    let got = tokio::time::timeout(Duration::from_secs(20), poll).await.unwrap().unwrap();
    assert!(got.expect(200).text().contains("\"answer\": 7"));
    let first =
        bench.get("/v1/waits/q/answer?generation=1&wait=60s").await.refused(410, "wait-closed");
    assert_eq!(first.json()["error"]["details"]["state"], "cancelled");
}

#[tokio::test]
async fn a_long_poll_ends_with_its_time_or_with_the_daemon() {
    let bench = Bench::new().await;
    bench.ask("t", "q").await;
    bench.get("/v1/waits/q/answer?wait=1ms").await.expect(204);
    bench.get("/v1/waits/q/answer?wait=PT0S").await.expect(204);
    bench.get("/v1/waits/nothing/answer?wait=60s").await.refused(404, "not-found");
    for bad in ["61s", "soon", "-1s"] {
        let got =
            bench.get(&format!("/v1/waits/q/answer?wait={bad}")).await.refused(400, "bad-input");
        assert_eq!(got.json()["error"]["details"]["field"], "wait");
    }
    bench.drain.cancel();
    bench.get("/v1/waits/q/answer?wait=60s").await.expect(204);
}
