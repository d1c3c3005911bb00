//! The stream of events.

use super::*;
use crate::store::Retention;
use futures::FutureExt;
use http_body_util::BodyExt;

/// A stream that is read chunk by chunk.
struct Read(Body);

impl Read {
    /// The next chunk, or `None` at the end.
    async fn chunk(&mut self) -> Option<String> {
        let chunk = tokio::time::timeout(Duration::from_secs(20), self.0.frame()).await.unwrap()?;
        Some(String::from_utf8(chunk.unwrap().into_data().unwrap().to_vec()).unwrap())
    }

    /// Whether nothing is there to be read now.
    fn is_quiet(&mut self) -> bool {
        self.0.frame().now_or_never().is_none()
    }

    /// The next `n` events, each as its id, its type, and its data.
    async fn events(&mut self, n: usize) -> Vec<(i64, String, String)> {
        let mut events = Vec::new();
        while events.len() < n {
            let chunk = self.chunk().await.unwrap();
            for block in chunk.split_terminator("\n\n").filter(|b| b.contains("data:")) {
                let field = |name: &str| {
                    let prefix = format!("{name}: ");
                    let of = block.split('\n').filter_map(|l| l.strip_prefix(&*prefix));
                    of.collect::<Vec<_>>().join("\n")
                };
                events.push((field("id").parse().unwrap(), field("event"), field("data")));
            }
        }
        assert_eq!(events.len(), n, "{events:?}");
        events
    }
}

impl Bench {
    async fn stream(&self, target: &str, headers: &[(&str, &str)]) -> http::Response<Body> {
        let peer = "127.0.0.1:40000".parse().unwrap();
        self.front.handle(peer, request("GET", target, headers, Body::empty())).await
    }

    async fn follow(&self, target: &str, last: Option<&str>) -> Read {
        let mut headers = vec![bearer(KEY)];
        headers.extend(last.map(|id| ("last-event-id", id)));
        let response = self.stream(target, &headers).await;
        assert_eq!(response.status(), 200);
        let mut read = Read(response.into_body());
        let first = read.chunk().await.unwrap();
        assert!(first.starts_with(":\nretry: 2000\nid: ") && first.ends_with("\n\n"), "{first:?}");
        read
    }
}

#[tokio::test]
async fn a_stream_tells_what_announcers_are_told() {
    let bench = Bench::new().await;
    let response = bench.stream("/v1/events", &[bearer(KEY)]).await;
    assert_eq!(response.status(), 200);
    for (name, value) in [
        ("content-type", "text/event-stream"),
        ("cache-control", "no-store"),
        ("x-accel-buffering", "no"),
    ] {
        assert_eq!(response.headers()[name], value);
    }
    assert!(response.headers().contains_key("x-request-id"));
    let mut read = Read(response.into_body());
    assert_eq!(read.chunk().await.unwrap(), ":\nretry: 2000\nid: 0\n\n");
    assert!(read.is_quiet());
    let asked = envelope("t", "q", ",\r\n \"tags\" : {\"a\":\"b\"},\r\"x\":1.10\n");
    bench.post("/v1/waits", asked.clone()).await.expect(202);
    let created = read.events(1).await;
    assert_eq!((created[0].0, created[0].1.as_str()), (1, "wait.created"));
    // Line ends are those of the standard; all else is as it came.
    assert_eq!(created[0].2, asked.replace("\r\n", "\n").replace('\r', "\n"));
    bench.post("/v1/answers", answer("t", "q", "\"a secret of the host\"")).await.expect(200);
    let answered = read.events(1).await;
    assert_eq!((answered[0].0, answered[0].1.as_str()), (2, "wait.answered"));
    let told: Value = serde_json::from_str(&answered[0].2).unwrap();
    assert_eq!((&told["state"], &told["tags"]["a"]), (&"completed".into(), &"b".into()));
    assert_eq!(told["answered_via"], "api");
    assert!(!answered[0].2.contains("secret"), "{}", answered[0].2);
    assert!(read.is_quiet());
}

#[tokio::test]
async fn every_end_is_told_and_a_second_question_has_its_generation() {
    let bench = Bench::new().await;
    let mut read = bench.follow("/v1/events", None).await;
    bench.ask("t", "q").await;
    let second = envelope("t", "q", "").replace("1.10", "2");
    bench.post("/v1/waits", second).await.expect(202);
    bench.post("/v1/waits/q/cancel", "").await.expect(200);
    let deadline = bench.clock.now().after(Duration::from_secs(60));
    bench
        .post("/v1/waits", envelope("t", "due", &format!(",\"expires_at\":\"{deadline}\"")))
        .await
        .expect(202);
    bench.clock.advance(Duration::from_secs(60));
    bench.sweep().await;
    let events = read.events(6).await;
    let types: Vec<_> = events.iter().map(|(_, event, _)| event.as_str()).collect();
    assert_eq!(
        types,
        [
            "wait.created",
            "wait.cancelled",
            "wait.created",
            "wait.cancelled",
            "wait.created",
            "wait.timed-out"
        ]
    );
    let of = |n: usize| serde_json::from_str::<Value>(&events[n].2).unwrap();
    assert!(of(0).get("reply_with").is_none(), "the first as it came");
    assert_eq!(of(2)["reply_with"]["generation"], 2);
    assert_eq!((&of(3)["generation"], &of(5)["state"]), (&2.into(), &"timed-out".into()));
    let ids: Vec<_> = events.iter().map(|(id, ..)| *id).collect();
    assert!(ids.is_sorted_by(|a, b| a < b), "{ids:?}");
}

#[tokio::test]
async fn a_stream_goes_on_behind_any_event() {
    let bench = Bench::new().await;
    for n in 0..150 {
        bench.ask("t", &format!("q{n}")).await;
    }
    let all = bench.follow("/v1/events", Some("0")).await.events(150).await;
    for from in [0, 1, 99, 100, 148] {
        let last = all[from].0.to_string();
        let rest = bench.follow("/v1/events", Some(&last)).await.events(149 - from).await;
        assert_eq!(rest, all[from + 1..]);
    }
    // At the end, and past it: what comes is told.
    for last in ["150", "151", "9223372036854775807"] {
        let mut read = bench.follow("/v1/events", Some(last)).await;
        assert!(read.is_quiet());
        let id = format!("after-{last}");
        bench.ask("t", &id).await;
        assert!(read.events(1).await[0].2.contains(&id));
    }
}

#[tokio::test]
async fn a_stream_is_of_one_tenant_and_of_one_thread_when_asked() {
    let bench = Bench::new().await;
    let mut thread = bench.follow("/v1/events?thread_id=a%2Fb", None).await;
    let others = [bearer("k-other")];
    let mut foreign = Read(bench.stream("/v1/events", &others).await.into_body());
    foreign.chunk().await.unwrap();
    bench.ask("t", "q1").await;
    bench.ask("a/b", "q2").await;
    bench.ask("a/b/c", "q3").await;
    let events = thread.events(1).await;
    assert!(events[0].2.contains("\"q2\""), "{events:?}");
    assert!(thread.is_quiet() && foreign.is_quiet());
    let asked = envelope("t", "q4", "");
    bench.send("POST", "/v1/waits", &[others[0], JSON], asked).await.expect(202);
    assert!(foreign.events(1).await[0].2.contains("\"q4\""));
    assert!(thread.is_quiet());
}

#[tokio::test]
async fn who_may_not_read_and_what_is_not_understood_is_refused() {
    let bench = Bench::new().await;
    bench.send("GET", "/v1/events", &[], "").await.refused(401, "unauthenticated");
    for key in ["k-publish", "k-answer"] {
        let got = bench.send("GET", "/v1/events", &[bearer(key)], "").await;
        assert_eq!(got.refused(403, "forbidden").json()["error"]["details"]["scope"], "read");
    }
    for (target, field) in [
        ("/v1/events?last_event_id=1", "last_event_id"),
        ("/v1/events?state=open", "state"),
        ("/v1/events?thread_id=", "thread_id"),
        ("/v1/events?thread_id=a&thread_id=b", "thread_id"),
    ] {
        let got = bench.get(target).await.refused(400, "bad-input");
        assert_eq!(got.json()["error"]["details"]["field"], field, "{target}");
    }
    let headers = [bearer(KEY), ("last-event-id", "latest")];
    let got = bench.send("GET", "/v1/events", &headers, "").await.refused(400, "bad-input");
    assert_eq!(got.json()["error"]["details"]["field"], "Last-Event-ID");
    bench
        .send("POST", "/v1/events", &[bearer(KEY), JSON], "")
        .await
        .refused(405, "method-not-allowed");
}

#[tokio::test]
async fn there_is_room_for_so_many_streams_and_for_another_once_one_ends() {
    let bench = Bench::new().await;
    let mut streams = Vec::new();
    for _ in 0..crate::web::events::MOST {
        streams.push(bench.stream("/v1/events", &[bearer("k-read")]).await);
    }
    assert!(streams.iter().all(|s| s.status() == 200));
    let got = bench.get("/v1/events").await.refused(503, "store-unavailable");
    assert_eq!(got.header("retry-after"), "10");
    drop(streams.pop());
    let mut read = bench.follow("/v1/events", None).await;
    assert!(read.is_quiet());
}

#[tokio::test]
async fn a_stop_ends_streams_also_those_that_come_late() {
    let bench = Bench::new().await;
    let mut read = bench.follow("/v1/events", None).await;
    assert!(read.is_quiet());
    bench.drain.cancel();
    assert_eq!(read.chunk().await, None);
    // A client that comes back at once is not turned away for good: it comes back once more.
    let mut read = bench.follow("/v1/events", None).await;
    assert_eq!(read.chunk().await, None);
}

#[tokio::test]
async fn forgotten_waits_are_out_of_the_stream() {
    let bench = Bench::new().await;
    bench.ask("t", "old").await;
    bench.post("/v1/waits/old/cancel", "").await.expect(200);
    bench.ask("t", "kept").await;
    let now = bench.clock.now();
    let none = Duration::ZERO;
    let retention = Retention { closed: none, dead: none, tombstones: none, replies: none };
    assert_eq!(
        bench.store.purge(retention, 10, now.after(Duration::from_secs(1))).await.unwrap(),
        1
    );
    let mut read = bench.follow("/v1/events", Some("0")).await;
    assert!(read.events(1).await[0].2.contains("\"kept\""));
    assert!(read.is_quiet());
}

#[tokio::test]
async fn large_events_come_one_by_one() {
    let bench = Bench::new().await;
    for n in 0..5 {
        let large = format!(",\"x\":\"{}\"", "x".repeat(60_000));
        bench.post("/v1/waits", envelope("t", &format!("q{n}"), &large)).await.expect(202);
    }
    let mut read = bench.follow("/v1/events", Some("0")).await;
    let mut sizes = Vec::new();
    while sizes.iter().sum::<usize>() < 300_000 {
        sizes.push(read.chunk().await.unwrap().len());
    }
    assert!(sizes.iter().all(|size| *size < 130_000), "{sizes:?}");
    assert!(read.is_quiet());
}
