//! Asking, asking again, looking, withdrawing.

use super::*;
use serde_json::json;
use serde_json::value::RawValue;
use std::collections::BTreeMap;

#[tokio::test]
async fn a_question_is_accepted_once_and_then_a_duplicate() {
    let bench = Bench::new().await;
    let body = envelope("order-1", "q", "");
    let got = bench.post("/v1/waits", body.clone()).await.expect(202);
    assert_eq!(
        got.text(),
        "{\"status\":\"accepted\",\"thread_id\":\"order-1\",\"question_id\":\"q\",\"generation\":1,\
         \"dedupe_key\":\"wait.created:q\",\"duplicate\":false}"
    );
    assert_eq!(got.header("content-type"), "application/json");
    let again = bench.post("/v1/waits", body.clone()).await.expect(200).json();
    assert_eq!((&again["duplicate"], &again["generation"]), (&json!(true), &json!(1)));
    let next = bench.post("/v1/waits", body.replace("1.10", "1.11")).await.expect(202).json();
    assert_eq!((&next["generation"], &next["dedupe_key"]), (&json!(2), &json!("wait.created:q:2")));
    let first = bench.get("/v1/waits/q?generation=1").await.expect(200).json();
    assert_eq!(first["state"], "cancelled");
    let newest = bench.get("/v1/waits/q").await.expect(200).json();
    assert_eq!((&newest["generation"], &newest["state"]), (&json!(2), &json!("open")));
    bench.get("/v1/waits/q?generation=3").await.refused(404, "not-found");
    let refused = bench.get("/v1/waits/q?generation=0").await.refused(400, "bad-input");
    assert_eq!(refused.json()["error"]["details"]["field"], "generation");
}

#[tokio::test]
async fn an_envelope_is_shown_as_it_came() {
    let bench = Bench::new().await;
    let body = envelope(
        "t",
        "q",
        ",  \"big\": 123456789012345678901234567890, \"e\":1E400,\"z\":{\"a\":1,\"a\":2}, \"u\":\"\\u0000\"",
    );
    bench.post("/v1/waits", body.clone()).await.expect(202);
    let got = bench.get("/v1/waits/q").await.expect(200);
    let members: BTreeMap<String, Box<RawValue>> = serde_json::from_slice(&got.body).unwrap();
    assert_eq!(members["envelope"].get(), body);
    let list = bench.get("/v1/waits").await.expect(200);
    assert!(list.text().contains("\"big\": 123456789012345678901234567890, \"e\":1E400"));
    assert!(!list.text().contains("1.10"), "a list leaves the question out");
    let announcements: Value = serde_json::from_str(members["announcements"].get()).unwrap();
    assert_eq!(announcements[0]["announcer"], "a");
    assert_eq!(announcements[0]["event"], "wait.created");
    assert_eq!(announcements[0]["state"], "queued");
    assert_eq!(announcements[0]["attempts"], 0);
    assert_eq!(announcements[1]["announcer"], "b");
}

#[tokio::test]
async fn a_refused_envelope_names_its_field_and_is_not_stored() {
    let bench = Bench::new().await;
    for (more, field) in [
        (",\"expires_at\":\"2026-09-14T09:00:00\"", "expires_at"),
        (",\"answer_ttl\":\"P1Y2M10DT2H30M\"", "answer_ttl"),
        (",\"tags\":[]", "tags"),
        (",\"reply_to\":\"x\"", "reply_to"),
        (",\"reply_with\":{\"thread_id\":\"other\"}", "reply_with"),
        (",\"question_id\":\"q\"", "question_id"),
    ] {
        let got = bench.post("/v1/waits", envelope("t", "q", more)).await.refused(400, "bad-input");
        assert_eq!(got.json()["error"]["details"]["field"], field);
    }
    for bad in
        ["", "[]", "{}", "{\"thread_id\":\"t\",\"question_id\":\"q\",\"answer\":1}", "\u{feff}{}"]
    {
        bench.post("/v1/waits", bad).await.refused(400, "bad-input");
    }
    bench.post("/v1/waits", vec![b'{', 0xff]).await.refused(400, "bad-input");
    assert_eq!(bench.get("/v1/waits").await.json()["waits"], json!([]));
}

#[tokio::test]
async fn an_id_in_a_path_is_one_segment_decoded_once() {
    let bench = Bench::new().await;
    let cases = [
        ("a/b", "a%2Fb"),
        ("100%", "100%25"),
        ("a%2Fb", "a%252Fb"),
        ("Zo\u{eb} \u{2603}", "Zo%C3%AB%20%E2%98%83"),
        ("-", "-"),
        ("..", "%2E%2E"),
        ("a+b", "a+b"),
        ("{question_id}", "%7Bquestion_id%7D"),
        ("answer", "answer"),
    ];
    for (id, _) in cases {
        bench.ask("t", id).await;
    }
    for (id, segment) in cases {
        let got = bench.get(&format!("/v1/waits/{segment}")).await.expect(200);
        assert_eq!(got.json()["question_id"], id, "{segment}");
        bench.get(&format!("/v1/waits/{segment}/answer")).await.expect(204);
    }
    bench.get("/v1/waits/a/b").await.refused(404, "not-found");
    bench.get("/v1/waits/%FF").await.refused(400, "bad-input");
    let got = bench.get("/v1/waits/a%0Ab").await.refused(400, "bad-input");
    assert_eq!(got.json()["error"]["details"]["field"], "question_id");
    bench.post("/v1/waits//cancel", "").await.refused(400, "bad-input");
    bench.get(&format!("/v1/waits/{}", "x".repeat(2_049))).await.refused(400, "bad-input");
}

#[tokio::test]
async fn a_mangled_id_goes_into_the_query() {
    let bench = Bench::new().await;
    bench.ask("t", "../x y+z").await;
    bench.ask("t", "-").await;
    for path in ["", "/answer"] {
        let got = bench.get(&format!("/v1/waits/-{path}?question_id=..%2Fx+y%2Bz")).await;
        assert!([200, 204].contains(&got.status), "{}", got.text());
    }
    let shown = bench.get("/v1/waits/-?question_id=-").await.expect(200).json();
    assert_eq!(shown["question_id"], "-");
    let got = bench.get("/v1/waits/q?question_id=-").await.refused(400, "bad-input");
    assert_eq!(got.json()["error"]["details"]["field"], "question_id");
    bench.post("/v1/waits/-/cancel?question_id=..%2Fx+y%2Bz", "").await.expect(200);
    bench.delete("/v1/waits/-/answer?question_id=..%2Fx+y%2Bz").await.expect(204);
}

#[tokio::test]
async fn an_id_of_two_threads_is_ambiguous_until_one_is_named() {
    let bench = Bench::new().await;
    bench.ask("t1", "q").await;
    let second = bench.ask("t2", "q").await.json();
    assert_eq!(second["dedupe_key"], "wait.created:q:2");
    for (method, path) in
        [("GET", ""), ("GET", "/answer"), ("DELETE", "/answer"), ("POST", "/cancel")]
    {
        let target = format!("/v1/waits/q{path}");
        let got =
            bench.send(method, &target, &[bearer(KEY)], "").await.refused(409, "ambiguous-wait");
        let mut threads: Vec<String> =
            serde_json::from_value(got.json()["error"]["details"]["thread_ids"].clone()).unwrap();
        threads.sort();
        assert_eq!(threads, ["t1", "t2"]);
    }
    let got = bench.get("/v1/waits/q?thread_id=t2").await.expect(200);
    assert_eq!(got.json()["thread_id"], "t2");
}

#[tokio::test]
async fn another_tenants_wait_is_not_there() {
    let bench = Bench::new().await;
    bench.ask("t", "q").await;
    let other = [bearer("k-other"), JSON];
    for (method, path) in
        [("GET", ""), ("GET", "/answer?wait=1s"), ("DELETE", "/answer"), ("POST", "/cancel")]
    {
        let target = format!("/v1/waits/q{path}");
        bench.send(method, &target, &other, "").await.refused(404, "not-found");
    }
    bench
        .send("POST", "/v1/answers", &other, answer("t", "q", "1"))
        .await
        .refused(404, "wait-not-found");
    bench.send("POST", "/v1/announcements/1/retry", &other, "").await.refused(404, "not-found");
    bench.send("POST", "/v1/announcers/a/retry", &other, "").await.refused(404, "not-found");
    let got = bench.send("GET", "/v1/waits", &other, "").await.expect(200);
    assert_eq!(got.json()["waits"], json!([]));
    let got = bench.send("GET", "/v1/announcements", &other, "").await.expect(200);
    assert_eq!(got.json()["announcements"], json!([]));
}

#[tokio::test]
async fn a_question_can_be_withdrawn_once_and_not_once_it_is_answered() {
    let bench = Bench::new().await;
    bench.ask("t", "q").await;
    let got = bench.post("/v1/waits/q/cancel", "{}").await.expect(200);
    assert_eq!(got.text(), "{\"status\":\"cancelled\"}");
    let again = bench.post("/v1/waits/q/cancel", "{}").await.refused(409, "wait-closed");
    assert_eq!(again.json()["error"]["details"]["state"], "cancelled");
    let shown = bench.get("/v1/waits/q").await.json();
    assert_eq!(shown["state"], "cancelled");
    assert_eq!(shown["announcements"][0]["state"], "withdrawn");
    assert_eq!(shown["closed_at"], "2027-01-15T08:00:00.000Z");
    let late = bench.post("/v1/answers", answer("t", "q", "1")).await.refused(409, "wait-closed");
    assert_eq!(late.json()["error"]["details"], json!({"state": "cancelled", "generation": 1}));
    bench.ask("t", "q2").await;
    bench.post("/v1/answers", answer("t", "q2", "1")).await.expect(200);
    let got = bench.post("/v1/waits/q2/cancel", "").await.refused(409, "wait-closed");
    assert_eq!(got.json()["error"]["details"]["state"], "completed");
    bench.post("/v1/waits/nothing/cancel", "").await.refused(404, "not-found");
}
