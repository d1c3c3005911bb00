//! What a crash and a stop leave of it.

use super::*;
use answerback_testkit::{PATIENCE, Receiver};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

#[tokio::test]
async fn the_first_answer_under_a_key_outlives_a_crash() {
    let daemon = keyed().start().await;
    let first = keyed_post(daemon.api(), "/v1/waits", "k", &envelope("t", "q")).await.expect(202);
    let daemon = daemon.restart().await;
    let again = keyed_post(daemon.api(), "/v1/waits", "k", &envelope("t", "q")).await.expect(202);
    assert_eq!(again.body, first.body);
    assert_eq!(again.header("idempotent-replayed"), "true");
    let other = keyed_post(daemon.api(), "/v1/waits", "k", &envelope("t", "q2")).await.expect(409);
    assert_eq!(other.code(), "idempotency-key-body-mismatch");
    daemon.api().get("/v1/waits/q2").await.expect(404);
}

#[tokio::test]
async fn an_answer_that_nobody_has_fetched_outlives_a_crash_and_its_delete_too() {
    let daemon = keyed().start().await;
    daemon.api().post("/v1/waits", &envelope("t", "q")).await.expect(202);
    daemon.api().post("/v1/answers", &answer("t", "q", json!({"a": 1}))).await.expect(200);
    let daemon = daemon.restart().await;
    let kept = daemon.api().get("/v1/waits/q/answer?wait=60s").await.expect(200).json();
    assert_eq!(kept["answer"], json!({"a": 1}));
    daemon.api().delete("/v1/waits/q/answer").await.expect(204);
    let daemon = daemon.restart().await;
    daemon.api().get("/v1/waits/q/answer").await.expect(410);
    daemon.api().delete("/v1/waits/q/answer").await.expect(204);
}

#[tokio::test]
async fn a_stop_lets_long_polls_go_at_once() {
    let mut daemon = keyed().start().await;
    daemon.api().post("/v1/waits", &envelope("t", "q")).await.expect(202);
    let addr = daemon.setup().addr();
    let mut polls = Vec::new();
    for _ in 0..8 {
        let mut stream = TcpStream::connect(addr).await.unwrap();
        let head = |path: &str| {
            format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {OPS}\r\n\r\n")
        };
        let both = head("/healthz") + &head("/v1/waits/q/answer?wait=60s");
        stream.write_all(both.as_bytes()).await.unwrap();
        let mut seen = [0; 12];
        stream.read_exact(&mut seen).await.unwrap();
        assert_eq!(&seen, b"HTTP/1.1 200");
        polls.push(stream);
    }
    let begun = Instant::now();
    assert!(daemon.terminate().await.success());
    assert!(begun.elapsed() < Duration::from_secs(10), "it waited for its polls");
    for mut stream in polls {
        let mut rest = Vec::new();
        timeout(PATIENCE, stream.read_to_end(&mut rest)).await.unwrap().unwrap();
        let rest = String::from_utf8_lossy(&rest);
        // Unless the connection was closed before its second request was read.
        assert!(!rest.contains("HTTP/1.1") || rest.contains("HTTP/1.1 204"), "{rest}");
    }
}

#[tokio::test]
async fn what_was_accepted_just_before_a_stop_is_there_and_announced_after_it() {
    let receiver = Receiver::start().await;
    let setup = keyed().config(&format!(
        "[announcers.hook]\ntype = \"webhook\"\nurl = \"{}\"\nallow_private = [\"127.0.0.0/8\"]\n",
        receiver.url("/hook")
    ));
    let mut daemon = setup.start().await;
    let mut accepted = Vec::new();
    for n in 0..50 {
        let id = format!("q{n}");
        daemon.api().post("/v1/waits", &envelope("t", &id)).await.expect(202);
        accepted.push(id);
    }
    assert!(daemon.terminate().await.success());
    let daemon = daemon.restart().await;
    for id in accepted {
        daemon
            .api()
            .until(&format!("/v1/waits/{id}"), |w| w["announcements"][0]["state"] == "delivered")
            .await;
    }
}
