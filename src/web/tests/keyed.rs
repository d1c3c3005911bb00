//! `Idempotency-Key`.

use super::*;
use serde_json::json;

fn keyed(key: &str) -> [(&str, &str); 3] {
    [bearer(KEY), JSON, ("idempotency-key", key)]
}

#[tokio::test]
async fn the_same_request_again_gets_the_first_answer_again() {
    let bench = Bench::new().await;
    let send = async |body: String| bench.send("POST", "/v1/waits", &keyed("k1"), body).await;
    let body = envelope("t", "q", "");
    let first = send(body.clone()).await.expect(202);
    assert_eq!(first.header("idempotent-replayed"), "");
    let again = send(body.clone()).await.expect(202);
    assert_eq!(again.body, first.body, "not a duplicate: the first answer");
    assert_eq!(again.header("idempotent-replayed"), "true");
    assert_eq!(again.header("content-type"), "application/json");
    send(body.replace("1.10", "2")).await.refused(409, "idempotency-key-body-mismatch");
    bench.clock.advance(Duration::from_secs(86_400 - 1));
    send(body.clone()).await.expect(202);
    bench.clock.advance(Duration::from_secs(1));
    let later = send(body).await.expect(200);
    assert_eq!(later.json()["duplicate"], true, "after a day it is a request of its own");
}

#[tokio::test]
async fn a_key_counts_per_tenant_and_route() {
    let bench = Bench::new().await;
    bench.ask("t", "q1").await;
    bench.ask("t", "q2").await;
    let cancel = async |id: &str| {
        bench.send("POST", &format!("/v1/waits/{id}/cancel"), &keyed("k"), "").await.expect(200)
    };
    cancel("q1").await;
    assert_eq!(cancel("q2").await.header("idempotent-replayed"), "");
    assert_eq!(bench.get("/v1/waits/q2").await.json()["state"], "cancelled");
    assert_eq!(cancel("q2").await.header("idempotent-replayed"), "true");
    let other = [bearer("k-other"), JSON, ("idempotency-key", "k")];
    let got = bench.send("POST", "/v1/waits", &other, envelope("t", "q1", "")).await.expect(202);
    assert_eq!(got.header("idempotent-replayed"), "");
}

#[tokio::test]
async fn a_request_that_was_refused_may_be_mended_under_the_same_key() {
    let bench = Bench::new().await;
    let send = async |headers: &[(&str, &str)], body: String| {
        bench.send("POST", "/v1/answers", headers, body).await
    };
    let body = answer("t", "q", "1");
    send(&keyed("k"), body.clone()).await.refused(404, "wait-not-found");
    bench.ask("t", "q").await;
    send(&keyed("k"), answer("t", "q", "NaN")).await.refused(400, "bad-input");
    let plain = [bearer(KEY), ("content-type", "text/plain"), ("idempotency-key", "k")];
    send(&plain, body.clone()).await.refused(415, "unsupported-media-type");
    let key = |secret| [bearer(secret), JSON, ("idempotency-key", "k")];
    send(&key("nobody"), body.clone()).await.refused(401, "unauthenticated");
    send(&key("k-read"), body.clone()).await.refused(403, "forbidden");
    send(&keyed("k"), "x".repeat((1 << 20) + 1)).await.refused(413, "request-too-large");
    let done = send(&keyed("k"), body.clone()).await.expect(200);
    assert_eq!(done.header("idempotent-replayed"), "");
    assert_eq!(send(&keyed("k"), body).await.expect(200).header("idempotent-replayed"), "true");

    bench.store.limit_pages(1).await.unwrap();
    let big = envelope("t", "big", &format!(",\"x\":\"{}\"", "x".repeat(500_000)));
    let ask = async || bench.send("POST", "/v1/waits", &keyed("k"), big.clone()).await;
    ask().await.refused(503, "store-unavailable");
    bench.store.limit_pages(1 << 20).await.unwrap();
    ask().await.expect(202);
}

#[tokio::test]
async fn a_refusal_that_is_given_again_names_one_request_in_header_and_body() {
    let bench = Bench::new().await;
    bench.ask("t", "q").await;
    bench.post("/v1/answers", answer("t", "q", "1")).await.expect(200);
    for (round, replayed) in ["", "true", "true"].into_iter().enumerate() {
        let own = format!("request-{round}");
        let headers = [bearer(KEY), JSON, ("idempotency-key", "k"), ("x-request-id", own.as_str())];
        let got = bench.send("POST", "/v1/waits/q/cancel", &headers, "").await;
        let got = got.refused(409, "wait-closed");
        assert_eq!(got.header("idempotent-replayed"), replayed);
        assert_eq!(got.header("x-request-id"), "request-0");
        assert_eq!(got.json()["error"]["requestId"], "request-0");
    }
    // What was done has no id in it: the header is the caller's own.
    for own in ["a", "b"] {
        let headers = [bearer(KEY), JSON, ("idempotency-key", "p"), ("x-request-id", own)];
        let got = bench.send("POST", "/v1/waits", &headers, envelope("t", "p", "")).await;
        assert_eq!(got.expect(202).header("x-request-id"), own);
    }
}

#[tokio::test]
async fn a_delete_without_a_body_is_replayed_without_one() {
    let bench = Bench::new().await;
    bench.ask("t", "q").await;
    for replayed in ["", "true"] {
        let got = bench.send("DELETE", "/v1/waits/q/answer", &keyed("k"), "").await.expect(204);
        assert_eq!(got.header("idempotent-replayed"), replayed);
        assert!(got.body.is_empty() && got.header("content-type").is_empty());
    }
}

#[tokio::test]
async fn of_many_at_once_one_is_done() {
    let bench = Arc::new(Bench::new().await);
    let mut all = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let bench = Arc::clone(&bench);
        all.spawn(async move {
            let got = bench.send("POST", "/v1/waits", &keyed("k"), envelope("t", "q", "")).await;
            if got.status == 409 {
                assert_eq!(got.code(), "idempotency-key-in-flight");
            } else {
                assert_eq!(got.json()["duplicate"], json!(false), "{}", got.text());
            }
            got.status
        });
    }
    let statuses = all.join_all().await;
    assert!(statuses.contains(&202));
    assert!(statuses.iter().all(|s| [202, 409].contains(s)), "{statuses:?}");
}

#[tokio::test]
async fn a_bad_key_is_refused_and_reading_needs_none() {
    let bench = Bench::new().await;
    for bad in ["", "two words", "é", &"k".repeat(256)] {
        let got = bench.send("POST", "/v1/waits", &keyed(bad), envelope("t", "q", "")).await;
        let got = got.refused(400, "bad-input");
        assert_eq!(got.json()["error"]["details"]["field"], "Idempotency-Key");
    }
    bench.send("GET", "/v1/waits", &keyed("two words"), "").await.expect(200);
}
