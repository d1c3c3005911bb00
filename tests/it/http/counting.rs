//! What it counts and what it says of itself.

use super::*;
use answerback_testkit::eventually;

#[tokio::test]
async fn every_metric_of_the_contract_is_there_and_none_has_an_id() {
    let daemon = keyed().config("[announcers.console]\ntype = \"log\"\n").start().await;
    let api = daemon.api();
    let soon = json!({
        "type": "wait.created", "thread_id": "thread-of-a-secret", "question_id": "question-of-a-secret",
        "question": 1, "tags": {"tag-of-a-secret": "x"},
    });
    api.post("/v1/waits", &soon).await.expect(202);
    api.post("/v1/waits", &soon).await.expect(200);
    api.post("/v1/waits", &json!({})).await.expect(400);
    let announced = "answerback_announcements_total{announcer=\"console\",outcome=\"delivered\"} 1";
    eventually("the announcement counted", || async {
        api.get("/metrics").await.expect(200).text().contains(announced).then_some(())
    })
    .await;
    let given = answer("thread-of-a-secret", "question-of-a-secret", json!(1));
    api.post("/v1/answers", &given).await.expect(200);
    api.delete("/v1/waits/question-of-a-secret/answer").await.expect(204);
    let text = api.get("/metrics").await.expect(200).text().to_owned();
    for name in [
        "answerback_waits_accepted_total 1",
        "answerback_duplicates_total 1",
        "answerback_answers_total{via=\"api\",result=\"accepted\"} 1",
        "answerback_announcement_seconds_bucket{",
        "answerback_queue_depth{announcer=\"console\"} 0",
        "answerback_oldest_seconds{announcer=\"console\"} 0",
        "answerback_deliveries_total{route=\"pull\",outcome=\"delivered\"} 1",
        "answerback_source_messages_total{source=\"http\",outcome=\"accepted\"} 2",
        "answerback_source_messages_total{source=\"http\",outcome=\"duplicate\"} 1",
        "answerback_source_messages_total{source=\"http\",outcome=\"refused\"} 1",
        "answerback_unmatched_waits_total 0",
        "answerback_deadline_lag_seconds_bucket{",
    ] {
        assert!(text.contains(name), "{name} in\n{text}");
    }
    assert!(!text.contains("of-a-secret"));
    for line in text.lines().filter(|line| line.starts_with("# TYPE ")) {
        let name = line.split(' ').nth(2).unwrap();
        assert!(text.contains(&format!("# HELP {name} ")), "{name} has no description");
    }
}

#[tokio::test]
async fn what_is_queued_for_a_dead_announcer_shows() {
    let daemon = keyed()
        .config(
            "[announcers.gone]\ntype = \"webhook\"\nurl = \"http://127.0.0.1:9/\"\n\
             allow_private = [\"127.0.0.0/8\"]\n",
        )
        .start()
        .await;
    for n in 0..3 {
        daemon.api().post("/v1/waits", &envelope(&format!("t{n}"), "q")).await.expect(202);
    }
    let text = daemon.api().get("/metrics").await.expect(200).text().to_owned();
    assert!(text.contains("answerback_queue_depth{announcer=\"gone\"} 3"), "{text}");
    let seen = daemon
        .api()
        .until("/v1/announcements?announcer=gone&limit=1", |list| {
            list["announcements"][0]["last_error"].is_string()
        })
        .await;
    assert_eq!(seen["announcements"][0]["state"], "queued");
    assert!(seen["next_cursor"].is_string());
}

#[tokio::test]
async fn it_is_alive_ready_and_describes_itself_without_a_key() {
    let daemon = keyed().start().await;
    let anybody = Api::new(daemon.url(""));
    anybody.get("/healthz").await.expect(200);
    anybody.get("/readyz").await.expect(200);
    let document = anybody.get("/openapi.json").await.expect(200).json();
    assert_eq!(document["openapi"], "3.1.0");
    assert!(document["paths"]["/v1/waits/{question_id}/answer"]["delete"].is_object());
    anybody.get("/metrics").await.expect(200);
    let passed_on = [("x-forwarded-for", "10.0.0.7")];
    anybody.send(Method::GET, "/metrics", &passed_on, Bytes::new()).await.expect(401);
    let wrong = anybody.send(Method::PUT, "/v1/waits", &[], Bytes::new()).await.expect(405);
    assert_eq!(wrong.code(), "method-not-allowed");
    let mut allow: Vec<&str> = wrong.header("allow").split(',').collect();
    allow.sort_unstable();
    assert_eq!(allow, ["GET", "HEAD", "POST"]);
}
