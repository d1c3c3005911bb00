//! Nothing secret is written down, at no level (contract, section 0, promise 6).

use super::*;

#[tokio::test]
async fn at_the_finest_level_the_log_has_no_question_answer_key_or_signature() {
    let daemon = keyed().config("[telemetry]\nlog = \"trace\"\n").start().await;
    let api = daemon.api();
    let question = json!({
        "type": "wait.created", "thread_id": "t", "question_id": "q",
        "question": {"secret": "marked-question"}, "default": "marked-default",
        "reply_to": {"kind": "http", "url": "http://user:marked-password@127.0.0.1:9/"},
        "expires_at": "2099-01-01T00:00:00Z",
    });
    let signed = [JSON, ("x-agent-wait-signature", "sha256=marked-signature")];
    api.send(Method::POST, "/v1/waits", &signed, Bytes::from(question.to_string()))
        .await
        .expect(202);
    api.with_key("marked-wrong-key").get("/v1/waits/q").await.expect(401);
    api.post_text("/v1/waits", "{\"question\": marked-broken").await.expect(400);
    let mut bad = question.clone();
    bad["tags"] = json!("marked-tags");
    api.post("/v1/waits", &bad).await.expect(400);
    keyed_post(
        api,
        "/v1/answers",
        "marked-idempotency-key",
        &answer("t", "q", json!("marked-answer")),
    )
    .await
    .expect(200);
    api.post("/v1/answers", &answer("t", "q", json!("marked-other"))).await.expect(409);
    api.get("/v1/waits/q?marked-query=1").await.expect(400);
    api.get("/v1/waits/q").await.expect(200);
    let log = daemon.log();
    assert!(log.contains("/v1/waits/{question_id}"), "requests are logged at this level:\n{log}");
    for line in log.lines() {
        assert!(!line.contains("marked-") && !line.contains(OPS), "{line}");
    }
}
