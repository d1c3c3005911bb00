//! What every request goes through, whatever its route.

use super::*;
use crate::web::routes::{Access, ROUTES, Takes};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

fn concrete(path: &str) -> String {
    path.replace("{question_id}", "q").replace("{id}", "1").replace("{name}", "a")
}

#[tokio::test]
async fn the_description_names_exactly_the_routes_that_exist() {
    let bench = Bench::new().await;
    let got = bench.send("GET", "/openapi.json", &[], Body::empty()).await.expect(200);
    let document = got.json();
    let paths = document["paths"].as_object().unwrap();
    let mut seen = 0;
    for (path, operations) in paths {
        let named: Vec<String> =
            operations.as_object().unwrap().keys().map(|m| m.to_uppercase()).collect();
        for method in ["GET", "POST", "PUT", "DELETE", "PATCH"] {
            let got = bench.send(method, &concrete(path), &[], Body::empty()).await;
            let exists = got.status != 405;
            assert_eq!(named.contains(&method.to_owned()), exists, "{method} {path}");
            assert_ne!(got.code(), "not-found", "{method} {path}");
            seen += usize::from(exists);
            if !exists {
                let allow: Vec<&str> = got.header("allow").split(',').collect();
                assert!(named.iter().all(|m| allow.contains(&m.as_str())), "{path}: {allow:?}");
                assert_eq!(got.code(), "method-not-allowed");
            }
        }
    }
    assert_eq!(seen, ROUTES.len());
}

#[tokio::test]
async fn routes_of_later_are_plainly_not_there() {
    let bench = Bench::new().await;
    for path in [
        "/",
        "/v1",
        "/v1/waits/",
        "/v1/starts",
        "/v1/keys",
        "/v1/runs/r",
        "/v1/rejected",
        "/V1/waits",
        "/v1/waits/a/b",
        "/v1/waits/q/links",
    ] {
        let got = bench.send("POST", path, &[JSON], "{}").await;
        assert_eq!((got.status, got.code().as_str()), (404, "not-found"), "{path}");
        assert!(!got.header("x-request-id").is_empty());
    }
}

#[tokio::test]
async fn every_response_carries_the_callers_request_id_or_a_fresh_one() {
    let bench = Bench::new().await;
    let id = "order-4471/~!";
    let cases = [
        ("GET", "/healthz", 200, None),
        ("GET", "/nothing", 404, None),
        ("PATCH", "/v1/waits", 405, None),
        ("GET", "/v1/waits", 401, None),
        ("POST", "/v1/waits", 415, Some(("content-type", "text/plain"))),
        ("POST", "/v1/waits", 400, Some(JSON)),
    ];
    for (method, path, status, header) in cases {
        let mut headers = vec![("x-request-id", id)];
        headers.extend(header);
        headers.extend(header.map(|_| bearer(KEY)));
        let got = bench.send(method, path, &headers, "x").await.expect(status);
        assert_eq!(got.header("x-request-id"), id, "{method} {path}");
        if status >= 400 {
            assert_eq!(got.json()["error"]["requestId"], id);
            assert!(got.json()["error"]["details"].is_object());
        }
    }
    for bad in ["two words", "é", ""] {
        let got = bench.send("GET", "/healthz", &[("x-request-id", bad)], Body::empty()).await;
        assert_eq!(got.header("x-request-id").len(), 26, "{bad}");
    }
}

#[tokio::test]
async fn each_route_wants_its_scope_and_admin_has_all() {
    let bench = Bench::new().await;
    for route in &ROUTES {
        let path = concrete(route.path);
        let body = if route.takes == Takes::Nothing { "" } else { "{}" };
        let scopes: &[Scope] = match route.access {
            Access::Open => continue,
            Access::Key(scopes) => scopes,
            Access::KeyOrSignature => &[Scope::Publish],
            Access::ReadOrLocal => &[Scope::Read],
        };
        let send = async |key: Option<&'static str>| {
            let mut headers = vec![JSON];
            headers.extend(key.map(bearer));
            // Not from this machine, so that /metrics wants a key too.
            let request = request(route.method.as_str(), &path, &headers, body);
            bench.raw_from("10.0.0.7:1", request).await
        };
        let what = format!("{} {path}", route.method);
        let got = send(None).await.refused(401, "unauthenticated");
        assert_eq!(got.header("www-authenticate"), "Bearer", "{what}");
        assert_eq!(send(Some("nobody")).await.status, 401, "{what}");
        assert!(![401, 403].contains(&send(Some(KEY)).await.status), "{what}");
        for (scope, key) in
            [(Scope::Publish, "k-publish"), (Scope::Answer, "k-answer"), (Scope::Read, "k-read")]
        {
            let got = send(Some(key)).await;
            if scopes.contains(&scope) {
                assert!(![401, 403].contains(&got.status), "{what} with {key}");
            } else {
                let got = got.refused(403, "forbidden");
                assert_eq!(got.json()["error"]["details"]["scope"], scopes[0].name(), "{what}");
            }
        }
    }
}

#[tokio::test]
async fn open_routes_want_no_key() {
    let bench = Bench::new().await;
    for path in ["/healthz", "/readyz", "/openapi.json"] {
        let request = request("GET", path, &[], Body::empty());
        bench.raw_from("10.0.0.7:1", request).await.expect(200);
    }
    let metrics = |headers: &[(&str, &str)]| request("GET", "/metrics", headers, Body::empty());
    let got = bench.raw(metrics(&[])).await.expect(200);
    assert!(got.header("content-type").starts_with("text/plain; version=0.0.4"));
    bench.raw(metrics(&[("x-forwarded-for", "10.0.0.7")])).await.refused(401, "unauthenticated");
}

#[tokio::test]
async fn without_keys_only_this_machine_under_its_own_names_is_served() {
    let bench = Bench::with(config::Auth::default(), rules()).await;
    let get = |path: &str, host: &str| {
        let mut request = request("GET", path, &[], Body::empty());
        request.headers_mut().insert("host", host.parse().unwrap());
        request
    };
    bench.raw(get("/v1/waits", "localhost:8080")).await.expect(200);
    bench.raw(get("/v1/waits", "127.0.0.1:8080")).await.expect(200);
    for path in ["/v1/waits", "/metrics", "/nothing"] {
        let got = bench.raw(get(path, "evil.example")).await.refused(403, "forbidden");
        assert!(got.json()["error"]["message"].as_str().unwrap().contains("localhost"));
    }
    bench.raw_from("10.0.0.7:1", get("/v1/waits", "localhost")).await.refused(403, "forbidden");
    bench.post("/v1/waits", envelope("t", "q", "")).await.expect(202);
    let cross = [JSON, ("origin", "https://evil.example")];
    bench.send("POST", "/v1/waits/q/cancel", &cross, "").await.refused(403, "forbidden");
}

#[tokio::test]
async fn a_signature_is_checked_over_the_raw_body() {
    let mut auth = keys();
    auth.webhook_secrets.push(config::WebhookSecret {
        name: "agent-wait".into(),
        secret: "s3cret".into(),
        tenant: TenantId::new("other").unwrap(),
    });
    let bench = Bench::with(auth, rules()).await;
    let body = envelope("t", "q", " ");
    let mut mac = Hmac::<Sha256>::new_from_slice(b"s3cret").unwrap();
    mac.update(body.as_bytes());
    let good = format!("sha256={}", hex::encode(mac.finalize().into_bytes()));
    let signed = [JSON, ("x-agent-wait-signature", good.as_str())];
    bench
        .send("POST", "/v1/waits", &signed, body.replace("1.10", "1.1"))
        .await
        .refused(401, "unauthenticated");
    bench.send("POST", "/v1/waits", &signed, body).await.expect(202);
    bench.get("/v1/waits/q").await.refused(404, "not-found");
    bench.send("GET", "/v1/waits/q", &[bearer("k-other")], Body::empty()).await.expect(200);
    // It opens this one door only.
    bench.send("POST", "/v1/waits/q/cancel", &signed, "").await.refused(401, "unauthenticated");
}

#[tokio::test]
async fn unknown_query_keys_are_refused_by_name_everywhere() {
    let bench = Bench::new().await;
    for route in &ROUTES {
        let path = format!("{}?stat=open", concrete(route.path));
        let got = bench
            .send(route.method.as_str(), &path, &[bearer(KEY), JSON], "")
            .await
            .refused(400, "bad-input");
        assert_eq!(got.json()["error"]["details"]["field"], "stat", "{path}");
    }
}

#[tokio::test]
async fn bodies_are_json_and_at_most_a_mebibyte() {
    let bench = Bench::new().await;
    let send = async |headers: &[(&str, &str)], body: Body| {
        let mut all = vec![bearer(KEY)];
        all.extend_from_slice(headers);
        bench.send("POST", "/v1/waits", &all, body).await
    };
    let small = || Body::from(envelope("t", "q", ""));
    send(&[], small()).await.refused(415, "unsupported-media-type");
    send(&[("content-type", "text/plain")], small()).await.refused(415, "unsupported-media-type");
    send(&[("content-type", "application/json; charset=utf-8")], small()).await.expect(202);
    let sized = |bytes: usize| {
        let head = envelope("t", "big", ",\"x\":\"");
        let head = &head[..head.len() - 1];
        format!("{head}{}\"}}", "x".repeat(bytes - head.len() - 2))
    };
    assert_eq!(sized(1 << 20).len(), 1 << 20);
    send(&[JSON], Body::from(sized((1 << 20) + 1))).await.refused(413, "request-too-large");
    let chunks: Vec<Result<Bytes, std::io::Error>> = sized((1 << 20) + 1)
        .into_bytes()
        .chunks(60_000)
        .map(|c| Ok(Bytes::copy_from_slice(c)))
        .collect();
    let chunked = Body::from_stream(futures::stream::iter(chunks));
    send(&[JSON], chunked).await.refused(413, "request-too-large");
    send(&[JSON], Body::from(sized(1 << 20))).await.expect(202);
    let got = send(&[JSON], Body::from("{\n  \"type\": NaN}")).await.refused(400, "bad-input");
    let message = got.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("line 2 column"), "{message}");
    bench
        .send("POST", "/v1/waits/q/cancel", &[bearer(KEY), JSON], "{\"a\":1}")
        .await
        .refused(400, "bad-input");
}

#[tokio::test]
async fn where_no_body_is_wanted_none_needs_a_type() {
    let bench = Bench::new().await;
    for (n, kind) in ["text/plain", "application/x-www-form-urlencoded", "", "application/json"]
        .into_iter()
        .enumerate()
    {
        for length in [None, Some("0")] {
            let id = format!("q{n}-{}", length.is_some());
            bench.ask("t", &id).await;
            let mut headers = vec![bearer(KEY), ("content-type", kind)];
            headers.extend(length.map(|n| ("content-length", n)));
            let cancel = format!("/v1/waits/{id}/cancel");
            bench.send("POST", &cancel, &headers, "").await.expect(200);
        }
    }
    let plain = [bearer(KEY), ("content-type", "text/plain")];
    bench.send("POST", "/v1/announcers/a/retry", &plain, "").await.expect(202);
    let got = bench.send("POST", "/v1/announcers/a/retry", &plain, "{}").await;
    got.refused(415, "unsupported-media-type");
    // Where a body is wanted an empty one is none, whatever its type.
    bench.send("POST", "/v1/waits", &plain, "").await.refused(415, "unsupported-media-type");
}

#[tokio::test]
async fn one_host_is_named_with_and_without_keys() {
    for auth in [keys(), config::Auth::default()] {
        let bench = Bench::with(auth, rules()).await;
        for hosts in [&[][..], &["localhost", "localhost"], &["localhost", "evil.example"]] {
            let mut request = request("GET", "/healthz", &[], Body::empty());
            request.headers_mut().remove("host");
            for host in hosts {
                request.headers_mut().append("host", host.parse().unwrap());
            }
            let got = bench.raw(request).await.refused(400, "bad-input");
            assert_eq!(got.json()["error"]["details"]["field"], "Host", "{hosts:?}");
            assert!(!got.header("x-request-id").is_empty());
        }
    }
}

#[tokio::test]
async fn a_full_disk_is_told_as_such_and_nothing_is_acknowledged() {
    let bench = Bench::new().await;
    bench.ask("t", "first").await;
    bench.store.limit_pages(1).await.unwrap();
    let big = format!(",\"x\":\"{}\"", "x".repeat(500_000));
    let got =
        bench.post("/v1/waits", envelope("t", "q", &big)).await.refused(503, "store-unavailable");
    assert!(!got.header("retry-after").is_empty());
    assert!(got.json()["error"]["retryAfterSeconds"].as_u64().unwrap() > 0);
    bench.store.limit_pages(1 << 20).await.unwrap();
    bench.get("/v1/waits/q").await.refused(404, "not-found");
    bench.post("/v1/waits", envelope("t", "q", &big)).await.expect(202);
}

#[tokio::test]
async fn while_it_stops_nothing_new_is_taken() {
    let bench = Bench::new().await;
    bench.ask("t", "q").await;
    bench.send("GET", "/readyz", &[], Body::empty()).await.expect(200);
    bench.drain.cancel();
    for (method, path) in [
        ("POST", "/v1/waits"),
        ("POST", "/v1/answers"),
        ("POST", "/v1/waits/q/cancel"),
        ("DELETE", "/v1/waits/q/answer"),
        ("POST", "/v1/announcers/a/retry"),
    ] {
        let got = bench
            .send(method, path, &[bearer(KEY), JSON], "{}")
            .await
            .refused(503, "shutting-down");
        assert!(!got.header("retry-after").is_empty());
    }
    bench.send("GET", "/readyz", &[], Body::empty()).await.refused(503, "shutting-down");
    bench.send("GET", "/healthz", &[], Body::empty()).await.expect(200);
    let got = bench.get("/v1/waits/q").await.expect(200);
    assert_eq!(got.header("connection"), "close");
}

/// Tells the time once a request, then breaks.
struct Breaking(ManualClock, AtomicU64);

impl Clock for Breaking {
    fn now(&self) -> Time {
        assert!(self.1.fetch_add(1, Ordering::SeqCst) == 0, "a clock that breaks");
        self.0.now()
    }
}

#[tokio::test]
async fn a_panic_is_a_500_that_says_nothing_of_it() {
    let clock = ManualClock::new(Time::from_millis(0));
    let breaking = Arc::new(Breaking(clock.clone(), AtomicU64::new(0)));
    let bench = Bench::on(keys(), rules(), clock, breaking).await;
    let got = bench.post("/v1/waits", envelope("t", "q", "")).await.refused(500, "internal");
    assert!(!got.text().contains("clock"));
    assert!(!got.header("x-request-id").is_empty());
}
