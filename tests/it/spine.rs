//! The whole way: a question in by HTTP, out on five buses and in the log, one answer back by a
//! queue or a topic.

use crate::bed::{all_of, answer, fresh, http_route, keyed, settled, wait_path};
use crate::buses::{ANNOUNCERS, Buses};
use answerback_testkit::moto::Moto;
use answerback_testkit::{Receiver, kafka, services};
use serde_json::{Value, json};
use std::collections::BTreeSet;

fn asked(thread_id: &str, question_id: &str, host: &str) -> Value {
    let mut envelope = crate::bed::envelope(thread_id, question_id);
    envelope["tags"] = json!({"approver_group": "finance", "host": host});
    envelope
}

#[tokio::test]
async fn one_question_goes_out_on_every_bus_and_its_answer_comes_back_by_its_route() {
    let buses = Buses::create().await;
    let host = Receiver::start().await;
    let moto = Moto::default();
    let (queue_name, topic) = (format!("{}.fifo", fresh("answers")), fresh("answers"));
    let queue = moto.create_queue(&queue_name).await;
    kafka::create_topic(&services::kafka(), &topic, 1).await;
    let (endpoint, brokers) = (moto.endpoint(), services::kafka());
    let daemon = buses
        .setup()
        .config(&format!(
            r#"
[[routes]]
name = "queue-hosts"
type = "sqs"
queue_url = "{queue}"
endpoint_url = "{endpoint}"
region = "us-east-1"
match = {{ tags = {{ host = "queue" }} }}
[[routes]]
name = "stream-hosts"
type = "kafka"
brokers = "{brokers}"
topic = "{topic}"
match = {{ tags = {{ host = "stream" }} }}
"#
        ))
        .config(&http_route("others", &host.url("/answers"), "secret_env = \"OPS_KEY\""))
        .start()
        .await;
    let api = daemon.api();

    let mut bodies = BTreeSet::new();
    for (thread, to) in [("order-1", "queue"), ("order-2", "stream"), ("order-3", "http")] {
        let envelope = asked(thread, &format!("q-{to}"), to);
        bodies.insert(envelope.to_string());
        let reply = api.post("/v1/waits", &envelope).await.expect(202).json();
        assert_eq!(
            reply,
            json!({
                "status": "accepted", "thread_id": thread, "question_id": format!("q-{to}"),
                "generation": 1, "dedupe_key": format!("wait.created:q-{to}"), "duplicate": false
            })
        );
    }
    settled(&daemon).await;

    // Out on five buses and in the log.
    let texts = |messages: &[Value]| -> BTreeSet<String> {
        messages.iter().map(|m| m["Body"].as_str().unwrap().to_owned()).collect()
    };
    let hook: BTreeSet<String> = buses.hook.all().iter().map(|r| r.text().to_owned()).collect();
    assert_eq!(hook, bodies);
    assert_eq!(texts(&buses.moto.receive(&buses.standard, 3).await), bodies);
    assert_eq!(texts(&buses.moto.receive(&buses.fifo, 3).await), bodies);
    assert_eq!(texts(&buses.moto.receive(&buses.raw, 3).await), bodies);
    let records: BTreeSet<String> =
        buses.records(3).await.into_iter().map(|r| r.value.unwrap()).collect();
    assert_eq!(records, bodies);
    let row = buses.row("THREAD#order-1", "WAIT#q-queue").await.unwrap();
    assert_eq!(row["status"]["S"], "open");
    assert_eq!(
        daemon.log().lines().filter(|l| l.contains("answerback::announce")).count(),
        3,
        "one line a wait"
    );
    let announcements = all_of(api, "/v1/announcements?state=delivered").await;
    assert_eq!(announcements.len(), 3 * ANNOUNCERS.len());
    assert!(announcements.iter().all(|a| a["attempts"] == 1), "{announcements:?}");

    // Back by the queue.
    let mut message = answer("order-1", "q-queue", json!({"action": "approve", "n": 1}));
    message["answered_by"] = json!("maria");
    api.post("/v1/answers", &message).await.expect(200);
    let taken = moto.receive(&queue, 1).await;
    let body: Value = serde_json::from_str(taken[0]["Body"].as_str().unwrap()).unwrap();
    assert_eq!(body, answer("order-1", "q-queue", json!({"action": "approve", "n": 1})));
    assert_eq!(taken[0]["Attributes"]["MessageGroupId"], "order-1");
    assert_eq!(taken[0]["Attributes"]["MessageDeduplicationId"], "wait.answered:q-queue");
    let attributes = &taken[0]["MessageAttributes"];
    assert_eq!(attributes["answered_via"]["StringValue"], "api");
    let by = attributes["answered_by"]["StringValue"].as_str().unwrap();
    assert!(by.contains("maria") && by.contains("ops"), "{by}");

    // By the topic.
    api.post("/v1/answers", &answer("order-2", "q-stream", json!(null))).await.expect(200);
    let record = kafka::records(&services::kafka(), &topic, 1).await.remove(0);
    assert_eq!(record.key.as_deref(), Some("order-2"));
    let body: Value = serde_json::from_str(record.value.as_deref().unwrap()).unwrap();
    assert_eq!(body, answer("order-2", "q-stream", Value::Null));
    assert_eq!(record.header("dedupe_key"), "wait.answered:q-stream");
    assert_eq!(record.header("answered_via"), "api");

    // By HTTP.
    api.post("/v1/answers", &answer("order-3", "q-http", json!([1]))).await.expect(200);
    let request = host.next().await;
    assert_eq!(request.json(), answer("order-3", "q-http", json!([1])));
    assert_eq!(request.header("x-agent-wait-event"), "wait.answered");
    assert_eq!(request.header("x-agent-wait-dedupe-key"), "wait.answered:q-http");
    assert_eq!(request.header("x-answerback-answered-via"), "api");
    assert!(request.signed_as_agent_wait(crate::bed::KEY));

    settled(&daemon).await;
    for (thread, question, route) in [
        ("order-1", "q-queue", "queue-hosts"),
        ("order-2", "q-stream", "stream-hosts"),
        ("order-3", "q-http", "others"),
    ] {
        let wait = api.get(&wait_path(thread, question)).await.expect(200).json();
        assert_eq!(wait["state"], "completed");
        assert_eq!(wait["answer"]["answered_via"], "api");
        let deliveries = wait["deliveries"].as_array().unwrap();
        assert_eq!(deliveries.len(), 1);
        assert_eq!(
            (&deliveries[0]["route"], &deliveries[0]["state"]),
            (&json!(route), &json!("delivered"))
        );
        // The row follows the wait to its end.
        let row =
            buses.row(&format!("THREAD#{thread}"), &format!("WAIT#{question}")).await.unwrap();
        assert_eq!(row["status"]["S"], "answered", "{row}");
        assert!(row["answered_at"]["S"].is_string());
    }
}

#[tokio::test]
async fn every_event_of_a_wait_reaches_those_who_asked_for_it() {
    let buses = Buses::create().await;
    let all = r#"events = ["wait.created", "wait.answered", "wait.timed-out", "wait.cancelled"]"#;
    let everything = Receiver::start().await;
    let with_answer = Receiver::start().await;
    let daemon = buses
        .setup()
        .config(&crate::bed::webhook("everything", &everything.url("/"), all))
        .config(&crate::bed::webhook(
            "answers",
            &with_answer.url("/"),
            "events = [\"wait.answered\", \"wait.timed-out\"]\ninclude_answer = true",
        ))
        .start()
        .await;
    let api = daemon.api();
    let mut timed = asked("t-timed", "timed", "none");
    timed["expires_at"] = json!(crate::bed::later(std::time::Duration::from_millis(300)));
    timed["default"] = json!(false);
    api.post("/v1/waits", &timed).await.expect(202);
    api.post("/v1/waits", &asked("t-answered", "answered", "none")).await.expect(202);
    api.post("/v1/waits", &asked("t-cancelled", "cancelled", "none")).await.expect(202);
    api.post("/v1/answers", &answer("t-answered", "answered", json!("secret"))).await.expect(200);
    api.post("/v1/waits/cancelled/cancel", &json!({})).await.expect(200);
    api.until("/v1/waits?state=timed-out", |l| l["waits"].as_array().unwrap().len() == 1).await;
    settled(&daemon).await;

    let mut events: Vec<(String, String)> = everything
        .all()
        .iter()
        .filter(|r| r.header("x-agent-wait-event") != "wait.created")
        .map(|r| {
            let body = r.json();
            assert_eq!(body["type"], r.header("x-agent-wait-event"));
            assert!(body.get("answer").is_none() && !r.text().contains("secret"), "{body}");
            assert_eq!(body["tags"]["approver_group"], "finance");
            (
                r.header("x-agent-wait-dedupe-key").to_owned(),
                body["state"].as_str().unwrap().to_owned(),
            )
        })
        .collect();
    events.sort();
    let of = |key: &str, state: &str| (key.to_owned(), state.to_owned());
    assert_eq!(
        events,
        [
            of("wait.answered:answered", "completed"),
            of("wait.cancelled:cancelled", "cancelled"),
            of("wait.timed-out:timed", "timed-out"),
        ]
    );
    let mut answers: Vec<(String, Value)> = with_answer
        .all()
        .iter()
        .map(|r| (r.json()["question_id"].as_str().unwrap().to_owned(), r.json()["answer"].clone()))
        .collect();
    answers.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(
        answers,
        [("answered".to_owned(), json!("secret")), ("timed".to_owned(), json!(false))]
    );
    for (question, status) in
        [("timed", "timed-out"), ("answered", "answered"), ("cancelled", "cancelled")]
    {
        let row =
            buses.row(&format!("THREAD#t-{question}"), &format!("WAIT#{question}")).await.unwrap();
        assert_eq!(row["status"]["S"], status);
    }
    let log = daemon.log();
    assert!(!log.contains("secret") && !log.contains("issue_refund"), "no content in any log line");
}

#[tokio::test]
async fn a_reply_to_is_used_where_it_is_allowed_and_noted_where_it_is_not() {
    let moto = Moto::default();
    let queue = moto.create_queue(&fresh("replies")).await;
    let (allowed, other) = (Receiver::start().await, Receiver::start().await);
    let daemon = keyed()
        .aws_credentials()
        .config(&format!(
            "[reply_to]\nallow = [\"{}\", \"{queue}\"]\nallow_private = [\"127.0.0.0/8\"]\nsecret_env = \"OPS_KEY\"\n",
            allowed.url("/answers/*"),
        ))
        .start()
        .await;
    let api = daemon.api();
    let to = [
        ("queue", json!({"kind": "sqs", "url": queue})),
        ("allowed", json!({"kind": "http", "url": allowed.url("/answers/1")})),
        ("path", json!({"kind": "http", "url": allowed.url("/elsewhere")})),
        ("port", json!({"kind": "http", "url": other.url("/answers/1")})),
        (
            "user",
            json!({"kind": "http", "url": allowed.url("/answers/1").replace("//", "//me:too@")}),
        ),
        ("nonsense", json!({"kind": "carrier-pigeon", "url": "home"})),
    ];
    for (question, reply_to) in &to {
        let mut envelope = asked("t", question, "none");
        envelope["reply_to"] = reply_to.clone();
        api.post("/v1/waits", &envelope).await.expect(202);
        api.post("/v1/answers", &answer("t", question, json!({"to": question}))).await.expect(200);
    }
    let taken = moto.receive(&queue, 1).await;
    let body: Value = serde_json::from_str(taken[0]["Body"].as_str().unwrap()).unwrap();
    assert_eq!(body, answer("t", "queue", json!({"to": "queue"})));
    let request = allowed.next().await;
    assert_eq!(request.json(), answer("t", "allowed", json!({"to": "allowed"})));
    assert!(request.signed_as_agent_wait(crate::bed::KEY));
    settled(&daemon).await;
    for (question, _) in &to[2..] {
        let wait = api.get(&wait_path("t", question)).await.expect(200).json();
        assert_eq!(wait["deliveries"][0]["route"], "pull", "{question}: {wait}");
        assert!(wait["note"].is_string(), "{question}: {wait}");
        let pulled = api.get(&format!("/v1/waits/{question}/answer")).await.expect(200).json();
        assert_eq!(pulled["answer"], json!({"to": question}));
    }
    assert_eq!((allowed.all().len(), other.all().len()), (1, 0));
}
