//! Who is let in.

use super::*;
use answerback_testkit::daemon::free_address;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

const SECRET: &str = "what-agent-wait-signs-with";

fn signature(body: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(SECRET.as_bytes()).unwrap();
    mac.update(body.as_bytes());
    format!("sha256={}", hex::encode(mac.finalize().into_bytes()))
}

fn both_ways(require: &str) -> Setup {
    bare()
        .config(&format!(
            r#"
[auth]
keys = [
  {{ name = "agents", key_env = "AGENTS_KEY", scopes = ["publish"] }},
  {{ name = "approvers", key_env = "APPROVERS_KEY", scopes = ["answer", "read"] }},
  {{ name = "strangers", key_env = "STRANGERS_KEY", scopes = ["admin"], tenant = "strangers" }},
]
webhook_secrets = [{{ name = "agent-wait", secret_env = "HOOK_SECRET" }}]
require = "{require}"
"#
        ))
        .env("AGENTS_KEY", "the-key-of-the-agents")
        .env("APPROVERS_KEY", "the-key-of-the-approvers")
        .env("STRANGERS_KEY", "the-key-of-the-strangers")
        .env("HOOK_SECRET", SECRET)
}

#[tokio::test]
async fn scopes_and_tenants_part_what_callers_may_do_and_see() {
    let daemon = both_ways("any").start().await;
    let agents = daemon.api().with_key("the-key-of-the-agents");
    let approvers = daemon.api().with_key("the-key-of-the-approvers");
    let strangers = daemon.api().with_key("the-key-of-the-strangers");
    agents.post("/v1/waits", &envelope("t", "q")).await.expect(202);
    let refused = agents.get("/v1/waits").await.expect(403);
    assert_eq!(refused.json()["error"]["details"]["scope"], "read");
    let refused = approvers.post("/v1/waits", &envelope("t", "q2")).await.expect(403);
    assert_eq!(refused.json()["error"]["details"]["scope"], "publish");
    assert_eq!(approvers.post("/v1/waits/q/cancel", &json!({})).await.status, 403);
    assert_eq!(approvers.post("/v1/announcers/log/retry", &json!({})).await.status, 403);
    let refused = daemon.api().get("/v1/waits").await.expect(401);
    assert_eq!(refused.header("www-authenticate"), "Bearer");
    // The same ids in another tenant are another wait.
    assert_eq!(strangers.get("/v1/waits/q").await.expect(404).code(), "not-found");
    let theirs = strangers.post("/v1/answers", &answer("t", "q", json!(1))).await.expect(404);
    assert_eq!(theirs.code(), "wait-not-found");
    let own = strangers.post("/v1/waits", &envelope("t", "q")).await.expect(202).json();
    assert_eq!((&own["generation"], &own["duplicate"]), (&json!(1), &json!(false)));
    approvers.post("/v1/answers", &answer("t", "q", json!(1))).await.expect(200);
    assert_eq!(strangers.get("/v1/waits/q").await.expect(200).json()["state"], "open");
    let seen = approvers.get("/v1/waits/q").await.expect(200).json();
    assert_eq!(seen["answer"]["answered_by"], "key: approvers");
}

#[tokio::test]
async fn both_means_a_key_and_a_signature() {
    let daemon = both_ways("both").start().await;
    let body = envelope("t", "q").to_string();
    let good = signature(&body);
    let agents = daemon.api().with_key("the-key-of-the-agents");
    let post = async |api: &Api, signature: &str| {
        let headers = [JSON, ("x-agent-wait-signature", signature)];
        api.send(Method::POST, "/v1/waits", &headers, Bytes::from(body.clone())).await.status
    };
    assert_eq!(post(daemon.api(), &good).await, 401);
    assert_eq!(post(&agents, "").await, 401);
    assert_eq!(post(&agents, &signature("{}")).await, 401);
    assert_eq!(post(&daemon.api().with_key("the-key-of-the-strangers"), &good).await, 401);
    assert_eq!(post(&agents, &good).await, 202);
}

#[tokio::test]
async fn without_keys_only_loopback_names_are_served() {
    let daemon = bare().start().await;
    let get = async |host: &str| {
        daemon.api().send(Method::GET, "/v1/waits", &[("host", host)], Bytes::new()).await
    };
    for host in ["localhost", "LOCALHOST:1", "127.0.0.1", "127.9.9.9:80", "[::1]:8080"] {
        assert_eq!(get(host).await.status, 200, "{host}");
    }
    for host in ["evil.example", "localhost.evil.example", "10.0.0.1:8080", "127.0.0.1.nip.io"] {
        let reply = get(host).await.expect(403);
        assert_eq!(reply.code(), "forbidden");
        assert!(!reply.header("x-request-id").is_empty());
    }
    let page = [JSON, ("origin", "https://evil.example")];
    let body = Bytes::from(envelope("t", "q").to_string());
    daemon.api().send(Method::POST, "/v1/waits", &page, body).await.expect(403);
    daemon.api().post("/v1/waits", &envelope("t", "q")).await.expect(202);
}

#[tokio::test]
async fn without_keys_it_does_not_start_for_others() {
    let port = free_address().port();
    for (listen, public_url) in
        [(format!("0.0.0.0:{port}"), ""), ("127.0.0.1:0".to_owned(), "https://approvals.example")]
    {
        let setup = bare().env("ANSWERBACK_SERVER__LISTEN", &listen);
        let setup = if public_url.is_empty() {
            setup
        } else {
            setup.env("ANSWERBACK_SERVER__PUBLIC_URL", public_url)
        };
        let config = setup.write_config();
        let serve = setup.command(&["serve", "--config", config.to_str().unwrap()]).output();
        let ended = tokio::time::timeout(answerback_testkit::PATIENCE, serve).await;
        let ended = ended.expect("it ends").unwrap();
        assert_eq!(ended.status.code(), Some(1));
        let said = String::from_utf8(ended.stderr).unwrap();
        assert!(said.contains("keys"), "{said}");
    }
}

#[tokio::test]
async fn http_2_is_served_on_the_same_port() {
    let daemon = keyed().start().await;
    // reqwest wants one, also for plain HTTP.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder().http2_prior_knowledge().no_proxy().build().unwrap();
    let url = daemon.url("/v1/waits");
    let post = |key: &str| {
        let post = client.post(&url).header("content-type", "application/json");
        post.bearer_auth(key).body(envelope("t", "q").to_string()).send()
    };
    let (first, second, refused) = tokio::join!(post(OPS), post(OPS), post("nobody"));
    let mut statuses = [first.unwrap().status().as_u16(), second.unwrap().status().as_u16()];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 202]);
    assert_eq!(refused.unwrap().status(), 401);
}
