//! Captures that are steps of one story, and publishing again in general: contract, section 2.

use crate::bed::{all_of, answer, keyed, post_raw, published, settled, wait_path, webhook};
use crate::cases::Posted;
use answerback_testkit::{Api, Daemon, Receiver, Reply, cases};
use serde_json::{Value, json};

struct Story {
    daemon: Daemon,
    hook: Receiver,
    publisher: Api,
}

impl Story {
    async fn begin() -> Self {
        let hook = Receiver::start().await;
        let more =
            r#"events = ["wait.created", "wait.answered", "wait.timed-out", "wait.cancelled"]"#;
        let daemon = keyed().config(&webhook("hook", &hook.url("/"), more)).start().await;
        let publisher = Api::new(daemon.url(""));
        Self { daemon, hook, publisher }
    }

    /// Posts a capture by its number; the reply must have this status and say this generation.
    async fn post(&self, number: u32, status: u16, generation: u64) -> Posted {
        let posted = Posted::of(cases::numbered(number)).unwrap();
        let reply = posted.post(&self.publisher).await.expect(status).json();
        assert_eq!(reply["duplicate"], status == 200, "{reply}");
        assert_eq!(reply["generation"], generation, "{reply}");
        posted
    }

    /// What the receiver has got, as event, dedupe key and body, once nothing is queued any more.
    async fn announced(&self) -> Vec<(String, String, String)> {
        settled(&self.daemon).await;
        let header =
            |r: &answerback_testkit::receiver::Received, name: &str| r.header(name).to_owned();
        self.hook
            .all()
            .iter()
            .map(|r| {
                let (event, key) =
                    (header(r, "x-agent-wait-event"), header(r, "x-agent-wait-dedupe-key"));
                (event, key, r.text().to_owned())
            })
            .collect()
    }

    async fn state(&self, posted: &Posted, generation: u32) -> Value {
        let (thread, question) = (posted.id("thread_id"), posted.id("question_id"));
        let path = format!("{}&generation={generation}", wait_path(&thread, &question));
        self.daemon.api().get(&path).await.expect(200).json()
    }
}

fn created(question_id: &str, body: &str) -> (String, String, String) {
    ("wait.created".to_owned(), format!("wait.created:{question_id}"), body.to_owned())
}

#[tokio::test]
async fn another_question_under_the_same_id_supersedes_the_first() {
    let story = Story::begin().await;
    let first = story.post(144, 202, 1).await;
    // What is superseded before it went out is not announced any more.
    story.announced().await;
    let second = story.post(145, 202, 2).await;
    let announced = story.announced().await;
    assert_eq!(announced[0], created("same-id", &first.body));
    assert!(announced.iter().any(|(event, _, _)| event == "wait.cancelled"), "{announced:?}");
    // The generation stands in `reply_with` only; every other byte is as it came.
    let body = &announced.iter().find(|(_, key, _)| key == "wait.created:same-id:2").unwrap().2;
    let given: Value = serde_json::from_str(&second.body).unwrap();
    let mut seen: Value = serde_json::from_str(body).unwrap();
    assert_eq!(seen["reply_with"]["generation"], 2);
    seen["reply_with"].as_object_mut().unwrap().shift_remove("generation");
    assert_eq!(seen, given);
    assert_eq!(story.state(&first, 1).await["state"], "cancelled");
    assert_eq!(story.state(&second, 2).await["state"], "open");

    // A redelivery of the first publish changes nothing now.
    let again = first.post(&story.publisher).await.expect(200).json();
    assert_eq!(again["duplicate"], true);
    assert_eq!(story.state(&second, 2).await["state"], "open");
    assert_eq!(story.announced().await.len(), announced.len());

    // A late yes to the first question is none to the second.
    let api = story.daemon.api();
    let late = answer("order-4471", "same-id", json!({"action": "approve"}));
    let refused = api.post("/v1/answers", &late).await.expect(409);
    assert_eq!(refused.code(), "wait-closed");
    assert_eq!(refused.json()["error"]["details"]["state"], "cancelled");
    let mut right = seen["reply_with"].clone();
    right["generation"] = json!(2);
    right["answer"] = json!({"action": "approve"});
    api.post("/v1/answers", &right).await.expect(200);
    let pulled = api.get("/v1/waits/same-id/answer").await.expect(200).json();
    assert_eq!(pulled, answer("order-4471", "same-id", json!({"action": "approve"})));
}

#[tokio::test]
async fn parallel_questions_are_one_wait_each_and_a_republished_one_is_a_duplicate() {
    let story = Story::begin().await;
    let mut wanted = Vec::new();
    for number in [150, 151, 152, 153, 165, 166] {
        let posted = story.post(number, 202, 1).await;
        wanted.push(created(&posted.id("question_id"), &posted.body));
    }
    // Published again after a partial answer: same question, fresh event_id.
    story.post(154, 200, 1).await;
    let mut announced = story.announced().await;
    announced.sort();
    wanted.sort();
    assert_eq!(announced, wanted);
}

#[tokio::test]
async fn a_question_published_again_keeps_its_first_deadline_and_is_announced_once() {
    let story = Story::begin().await;
    let first = story.post(168, 202, 1).await;
    let before = story.state(&first, 1).await;
    let again = story.post(169, 200, 1).await;
    let after = story.state(&again, 1).await;
    assert_eq!(after["expires_at"], before["expires_at"]);
    assert_eq!(story.announced().await, [created(&first.id("question_id"), &first.body)]);
}

#[tokio::test]
async fn a_question_published_again_after_its_deadline_gets_the_default_again() {
    let story = Story::begin().await;
    let first = story.post(155, 202, 1).await;
    story
        .daemon
        .api()
        .until("/v1/waits?state=timed-out", |l| l["waits"].as_array().unwrap().len() == 1)
        .await;
    story.post(156, 200, 1).await;
    let wait = story.state(&first, 1).await;
    assert_eq!(wait["answer"]["message"]["answer"], json!({"action": "reject"}));
    assert_eq!(wait["answer"]["answered_via"], "default");
    let announced = story.announced().await;
    assert!(announced.iter().all(|(event, _, _)| event != "wait.created"), "{announced:?}");
}

#[tokio::test]
async fn the_same_id_in_two_threads_is_two_waits_with_keys_of_their_own() {
    let story = Story::begin().await;
    let a = story.post(221, 202, 1).await;
    let b = story.post(222, 202, 1).await;
    let mut announced = story.announced().await;
    announced.sort();
    let mut wanted = [created("call_1", &a.body), created("call_1:2", &b.body)];
    wanted.sort();
    assert_eq!(announced, wanted);
    let api = story.daemon.api();
    let ambiguous = api.get("/v1/waits/call_1").await.expect(409);
    assert_eq!(ambiguous.code(), "ambiguous-wait");
    let mut threads = ambiguous.json()["error"]["details"]["thread_ids"].clone();
    threads.as_array_mut().unwrap().sort_by_key(ToString::to_string);
    assert_eq!(threads, json!(["pa-thread-A", "pa-thread-B"]));
    api.post("/v1/answers", &answer("pa-thread-B", "call_1", json!("b"))).await.expect(200);
    assert_eq!(story.state(&a, 1).await["state"], "open");
    assert_eq!(story.state(&b, 1).await["state"], "completed");
}

#[tokio::test]
async fn a_redelivered_publish_has_no_effect_after_a_newer_question_nor_after_the_answer() {
    let story = Story::begin().await;
    let api = story.daemon.api().clone();
    let post = |envelope: Value| {
        let api = api.clone();
        async move { api.post("/v1/waits", &envelope).await }
    };
    let said = |reply: Reply| {
        let json = reply.json();
        (reply.status, json["generation"].clone(), json["duplicate"].clone())
    };
    let first = published("t", "q", "event-1");
    let mut second = published("t", "q", "event-2");
    second["question"] = json!("another");
    assert_eq!(said(post(first.clone()).await), (202, json!(1), json!(false)));
    assert_eq!(said(post(first.clone()).await), (200, json!(1), json!(true)));
    // What is over before it went out is not announced any more.
    story.announced().await;
    assert_eq!(said(post(second.clone()).await), (202, json!(2), json!(false)));
    // The first once more, late: it must not bring the old question back.
    assert_eq!(post(first.clone()).await.expect(200).json()["duplicate"], true);
    let newest = api.get("/v1/waits/q").await.expect(200).json();
    assert_eq!((&newest["generation"], &newest["state"]), (&json!(2), &json!("open")));
    story.announced().await;
    let mut message = answer("t", "q", json!(false));
    message["generation"] = json!(2);
    api.post("/v1/answers", &message).await.expect(200);
    for redelivered in [&first, &second] {
        assert_eq!(post(redelivered.clone()).await.expect(200).json()["duplicate"], true);
    }
    let newest = api.get("/v1/waits/q").await.expect(200).json();
    assert_eq!((&newest["generation"], &newest["state"]), (&json!(2), &json!("completed")));
    assert_eq!(newest["deliveries"].as_array().unwrap().len(), 1);
    let announced = story.announced().await;
    let count = |event: &str| announced.iter().filter(|(e, _, _)| e == event).count();
    assert_eq!((count("wait.created"), count("wait.answered"), count("wait.cancelled")), (2, 1, 1));
    // The same question with a fresh event_id: the answer goes to the host once more.
    let mut fresh = second.clone();
    fresh["event_id"] = json!("event-3");
    assert_eq!(said(post(fresh).await), (200, json!(2), json!(true)));
    let newest = api.get("/v1/waits/q").await.expect(200).json();
    assert_eq!(newest["generation"], 2);
    assert_eq!(all_of(&api, "/v1/waits").await.len(), 2);
}

#[tokio::test]
async fn a_publish_must_be_signed_or_have_a_key() {
    let story = Story::begin().await;
    let posted = Posted::of(cases::numbered(1)).unwrap();
    let mut forged = posted.headers.clone();
    for (name, value) in &mut forged {
        if name == "X-Agent-Wait-Signature" {
            *value =
                answerback_testkit::receiver::agent_wait_signature("wrong", posted.body.as_bytes());
        }
    }
    let refused = post_raw(&story.publisher, "/v1/waits", &forged, posted.body.clone()).await;
    assert_eq!((refused.status, refused.code().as_str()), (401, "unauthenticated"));
    let unsigned = story.publisher.post_text("/v1/waits", posted.body.clone()).await;
    assert_eq!(unsigned.status, 401);
    // The empty secret's signature is not taken for a missing one.
    let empty = cases::numbered(192);
    let body = empty.envelope.clone().unwrap();
    let refused = post_raw(&story.publisher, "/v1/waits", &empty.headers(), body).await;
    assert_eq!(refused.status, 401);
    assert!(all_of(story.daemon.api(), "/v1/waits").await.is_empty());
    posted.post(&story.publisher).await.expect(202);
    assert_eq!(story.hook.next().await.text(), posted.body);
}
