//! Lists, and sending again.

use super::*;
use serde_json::json;

fn ids(got: &Got, list: &str) -> Vec<String> {
    let body = got.json();
    let items = body[list].as_array().unwrap();
    items.iter().map(|w| w["question_id"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn waits_are_listed_newest_first_page_by_page() {
    let bench = Bench::new().await;
    for n in 0..7 {
        bench.ask("t", &format!("q{n}")).await;
    }
    let mut seen = Vec::new();
    let mut next = String::new();
    let mut pages = 0;
    loop {
        let got = bench.get(&format!("/v1/waits?limit=3{next}")).await.expect(200);
        seen.extend(ids(&got, "waits"));
        pages += 1;
        match got.json()["next_cursor"].as_str() {
            Some(cursor) => next = format!("&cursor={cursor}"),
            None => break,
        }
    }
    assert_eq!(seen, ["q6", "q5", "q4", "q3", "q2", "q1", "q0"]);
    assert_eq!(pages, 3);
    // A page that ends with the last one knows it.
    assert_eq!(bench.get("/v1/waits?limit=7").await.json()["next_cursor"], json!(null));
    assert!(bench.get("/v1/waits?limit=6").await.json()["next_cursor"].is_string());
    for bad in ["limit=0", "limit=501", "cursor=x", "state=opne", "thread_id=", "state=open,"] {
        bench.get(&format!("/v1/waits?{bad}")).await.refused(400, "bad-input");
    }
}

#[tokio::test]
async fn many_waits_are_read_in_steps_and_large_ones_end_the_page_early() {
    let bench = Bench::new().await;
    for n in 0..120 {
        bench.ask("t", &format!("q{n}")).await;
    }
    let got = bench.get("/v1/waits?limit=110").await.expect(200);
    let seen = ids(&got, "waits");
    assert_eq!((seen.len(), seen[0].as_str(), seen[109].as_str()), (110, "q119", "q10"));
    let cursor = got.json()["next_cursor"].as_str().unwrap().to_owned();
    let rest = bench.get(&format!("/v1/waits?cursor={cursor}")).await.expect(200);
    assert_eq!(ids(&rest, "waits").len(), 10);
    let large = format!(",\"x\":\"{}\"", "x".repeat(900_000));
    for n in 0..8 {
        bench.post("/v1/waits", envelope("large", &format!("l{n}"), &large)).await.expect(202);
    }
    let got = bench.get("/v1/waits?thread_id=large").await.expect(200);
    assert_eq!(ids(&got, "waits").len(), 5);
    let cursor = got.json()["next_cursor"].as_str().unwrap().to_owned();
    let rest = bench.get(&format!("/v1/waits?thread_id=large&cursor={cursor}")).await.expect(200);
    assert_eq!(ids(&rest, "waits"), ["l2", "l1", "l0"]);
    assert_eq!(rest.json()["next_cursor"], json!(null));
}

#[tokio::test]
async fn waits_are_found_by_what_they_are() {
    let bench = Bench::new().await;
    let tagged = |t, q, tags: &str| envelope(t, q, &format!(",\"tags\":{tags}"));
    bench
        .post("/v1/waits", tagged("t1", "q1", "{\"group\":\"finance\",\"n\":5}"))
        .await
        .expect(202);
    bench.post("/v1/waits", tagged("t2", "q2", "{\"group\":\"legal\"}")).await.expect(202);
    bench.ask("t2", "q3").await;
    bench.post("/v1/waits/q3/cancel", "").await.expect(200);
    let find = async |query: &str| {
        ids(&bench.get(&format!("/v1/waits?{query}")).await.expect(200), "waits")
    };
    assert_eq!(find("thread_id=t2").await, ["q3", "q2"]);
    assert_eq!(find("run_id=t1").await, ["q1"]);
    assert_eq!(find("tag.group=finance").await, ["q1"]);
    assert_eq!(find("tag.group=finance&tag.n=5").await, ["q1"]);
    assert_eq!(find("tag.group=finance&tag.n=6").await, Vec::<String>::new());
    assert_eq!(find("state=open").await, ["q2", "q1"]);
    assert_eq!(find("state=cancelled&state=timed-out").await, ["q3"]);
    assert_eq!(find("state=open,cancelled&thread_id=t2").await, ["q3", "q2"]);
    assert_eq!(find("announcer=a&state=open").await, ["q2", "q1"]);
    assert_eq!(find("announcer=none").await, Vec::<String>::new());
}

#[tokio::test]
async fn announcements_are_listed_and_dead_ones_sent_again() {
    let bench = Bench::new().await;
    bench.ask("t1", "q1").await;
    bench.ask("t2", "q2").await;
    bench.kill("a").await;
    let got = bench.get("/v1/announcements?state=dead&announcer=a").await.expect(200).json();
    let dead = got["announcements"].as_array().unwrap();
    assert_eq!(dead.len(), 2);
    let mut first = dead[1].clone();
    let id = first["id"].as_str().unwrap().to_owned();
    first["id"] = json!(null);
    assert_eq!(
        first,
        json!({
            "id": null, "announcer": "a", "thread_id": "t1", "question_id": "q1", "generation": 1,
            "event": "wait.created", "state": "dead", "attempts": 1, "last_error": "HTTP 400",
            "reason": "rejected", "at": "2027-01-15T08:00:00.000Z",
        })
    );
    assert_eq!(
        bench.get("/v1/announcements?announcer=b").await.json()["announcements"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
    let retry = format!("/v1/announcements/{id}/retry");
    let got = bench.post(&retry, "").await.expect(202);
    assert_eq!(got.text(), "{\"retried\":1}");
    let again = bench.post(&retry, "").await.refused(409, "not-retryable");
    assert_eq!(again.json()["error"]["details"]["state"], "queued");
    let got = bench.post("/v1/announcers/a/retry", "").await.expect(202);
    assert_eq!(got.text(), "{\"retried\":1}");
    let got = bench.post("/v1/announcers/a/retry", "").await.expect(202);
    assert_eq!(got.text(), "{\"retried\":0}");
    bench.post("/v1/announcers/nobody/retry", "").await.refused(404, "not-found");
    for bad in ["0", "999", "x", "-1", "9999999999999999999999"] {
        bench.post(&format!("/v1/announcements/{bad}/retry"), "").await.refused(404, "not-found");
    }
    // A delivery's door does not open for an announcement.
    bench.post(&format!("/v1/deliveries/{id}/retry"), "").await.refused(404, "not-found");
    bench.get("/v1/announcements?state=dead,queued").await.refused(400, "bad-input");
}

#[tokio::test]
async fn an_announcement_of_a_closed_wait_is_not_sent_again() {
    let bench = Bench::new().await;
    bench.ask("t", "q").await;
    bench.kill("a").await;
    bench.post("/v1/waits/q/cancel", "").await.expect(200);
    let got = bench.get("/v1/announcements?announcer=a").await.json();
    let id = got["announcements"][0]["id"].as_str().unwrap().to_owned();
    bench.post(&format!("/v1/announcements/{id}/retry"), "").await.refused(409, "not-retryable");
}

#[tokio::test]
async fn the_work_of_an_announcer_that_is_gone_waits_for_its_return() {
    let bench = Bench::new().await;
    bench.ask("t", "q").await;
    let now = bench.clock.now();
    let present = vec![Destination::Announcer(Name::new("a"))];
    assert_eq!(bench.store.retire(present, now).await.unwrap(), 1);
    let got = bench.get("/v1/announcements?announcer=b").await.json();
    assert_eq!(got["announcements"][0]["reason"], "announcer-removed");
    // The same store under a configuration without it.
    let front = |names: &[&str]| {
        let mut rules = rules();
        rules.announcers.retain(|a| names.contains(&a.name.as_str()));
        let intake = Intake::new(
            bench.store.clone(),
            Arc::new(bench.clock.clone()),
            bench.dispatcher.clone(),
            bench.deadlines.clone(),
            bench.watchers.clone(),
        );
        Front::new(ApiState {
            store: bench.store.clone(),
            intake,
            clock: Arc::new(bench.clock.clone()),
            auth: Auth::new(&keys()),
            rules: Arc::new(rules),
            metrics: PrometheusBuilder::new().build_recorder().handle(),
            drain: CancellationToken::new(),
        })
    };
    let id = got["announcements"][0]["id"].as_str().unwrap().to_owned();
    let retry = |front: Front| {
        let request = request("POST", &format!("/v1/announcements/{id}/retry"), &[bearer(KEY)], "");
        async move { front.handle("127.0.0.1:1".parse().unwrap(), request).await.status().as_u16() }
    };
    assert_eq!(retry(front(&["a"])).await, 409);
    assert_eq!(retry(front(&["a", "b"])).await, 202);
}

/// 20,000 waits that are over, each with an announcement that was delivered.
const MANY_CLOSED: &str = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000) \
     INSERT INTO waits (tenant, thread_id, question_id, generation, choice, state, event_id, created_at, \
     envelope) SELECT 'default', 't', 'q' || i, 1, 1, 2, 'e', 0, \
     CAST('{\"type\":\"wait.created\",\"thread_id\":\"t\",\"question_id\":\"q\",\"question\":1}' AS BLOB) FROM n; \
     INSERT INTO outbox (wait, destination, event, repeat, state, queued_at, next_attempt_at) \
     SELECT w.id, d.id, 0, 0, 2, 0, 0 FROM waits w, destinations d WHERE w.state = 2 AND d.name = 'a'";

#[tokio::test]
async fn a_filter_that_fits_little_is_followed_by_its_cursor() {
    let bench = Bench::new().await;
    bench.post("/v1/waits", envelope("t", "rare", ",\"tags\":{\"x\":1}")).await.expect(202);
    bench.store.execute(MANY_CLOSED).await.unwrap();
    for list in ["waits?tag.x=1", "announcements?state=withdrawn"] {
        let plural = list.split('?').next().unwrap();
        let first = bench.get(&format!("/v1/{list}")).await.expect(200).json();
        assert_eq!(first[plural], json!([]));
        let mut cursor = first["next_cursor"].as_str().map(str::to_owned);
        let mut found = 0;
        while let Some(from) = cursor {
            let more = bench.get(&format!("/v1/{list}&cursor={from}")).await.expect(200).json();
            found += more[plural].as_array().unwrap().len();
            cursor = more["next_cursor"].as_str().map(str::to_owned);
        }
        assert_eq!(found, usize::from(plural == "waits"), "{list}");
    }
}

#[tokio::test]
async fn a_delivery_of_an_answer_that_expired_is_dead_by_itself_and_stays_so() {
    let bench = Bench::new().await;
    bench.post("/v1/waits", envelope("t", "q", ",\"answer_ttl\":\"PT10S\"")).await.expect(202);
    bench.post("/v1/answers", answer("t", "q", "1")).await.expect(200);
    bench.clock.advance(Duration::from_secs(10));
    bench.sweep().await;
    let got = bench.get("/v1/deliveries?state=dead").await.expect(200).json();
    assert_eq!(got["deliveries"][0]["reason"], "answer-expired");
    let id = got["deliveries"][0]["id"].as_str().unwrap().to_owned();
    bench.post(&format!("/v1/deliveries/{id}/retry"), "").await.refused(409, "not-retryable");
    bench.get("/v1/waits/q/answer").await.refused(410, "answer-expired");
    bench.delete("/v1/waits/q/answer").await.expect(204);
}

#[tokio::test]
async fn deliveries_are_listed_with_their_route() {
    let bench = Bench::new().await;
    bench.ask("t", "q").await;
    bench.post("/v1/answers", answer("t", "q", "1")).await.expect(200);
    let got = bench.get("/v1/deliveries?route=pull&state=queued").await.expect(200).json();
    let delivery = &got["deliveries"][0];
    assert_eq!(delivery["route"], "pull");
    assert_eq!(delivery["event"], "wait.answered");
    assert_eq!(got["next_cursor"], json!(null));
    let id = delivery["id"].as_str().unwrap();
    bench.post(&format!("/v1/deliveries/{id}/retry"), "").await.refused(409, "not-retryable");
    bench.get("/v1/deliveries?announcer=a").await.refused(400, "bad-input");
}
