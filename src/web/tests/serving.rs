//! The listener, over real sockets.

use super::*;
use crate::web::{Limits, Server, ServerError, TlsFiles};
use std::path::Path;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

const LOOPBACK: &str = "127.0.0.1:0";

fn limits(idle: Duration) -> Limits {
    Limits { connections: 16, idle }
}

async fn serve(bench: &Bench, limits: Limits) -> Server {
    Server::start(bench.front.clone(), LOOPBACK.parse().unwrap(), None, limits).await.unwrap()
}

/// Reads to the end of the connection, which has to come.
async fn rest(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    timeout(Duration::from_secs(20), stream.read_to_end(&mut text)).await.unwrap().unwrap();
    String::from_utf8(text).unwrap()
}

fn head(method: &str, target: &str, more: &str) -> String {
    format!("{method} {target} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n{more}\r\n")
}

#[tokio::test]
async fn a_connection_serves_many_requests_and_ends_in_good_order() {
    let bench = Bench::new().await;
    let server = serve(&bench, Limits::default()).await;
    let mut stream = TcpStream::connect(server.address()).await.unwrap();
    let body = envelope("t", "q", "");
    let post = format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len());
    let all = [
        head("POST", "/v1/waits", &post),
        body,
        head("GET", "/healthz", ""),
        head("GET", "/v1/waits/q/answer?wait=60s", ""),
    ];
    stream.write_all(all.concat().as_bytes()).await.unwrap();
    let mut seen = String::new();
    while seen.matches("HTTP/1.1").count() < 2 {
        let mut piece = [0; 4_096];
        let n = timeout(Duration::from_secs(20), stream.read(&mut piece)).await.unwrap().unwrap();
        seen.push_str(std::str::from_utf8(&piece[..n]).unwrap());
    }
    assert!(seen.contains("HTTP/1.1 202 Accepted") && seen.contains("HTTP/1.1 200 OK"), "{seen}");
    // The poll is under way, or about to be: it is let go, and the connection with it.
    bench.drain.cancel();
    assert!(server.stop(Duration::from_secs(20)).await);
    let last = rest(&mut stream).await;
    assert!(last.is_empty() || last.contains("HTTP/1.1 204"), "{last}");
}

#[tokio::test]
async fn what_does_not_end_within_the_grace_is_cut_off() {
    let bench = Bench::new().await;
    bench.ask("t", "q").await;
    let server = serve(&bench, Limits::default()).await;
    let mut stream = TcpStream::connect(server.address()).await.unwrap();
    let slow = head("POST", "/v1/waits", "content-type: application/json\r\ncontent-length: 9\r\n");
    stream.write_all(slow.as_bytes()).await.unwrap();
    stream.write_all(head("GET", "/healthz", "").as_bytes()).await.unwrap();
    let mut first = [0; 12];
    stream.read_exact(&mut first).await.unwrap();
    let mut polling = TcpStream::connect(server.address()).await.unwrap();
    let poll = head("GET", "/healthz", "") + &head("GET", "/v1/waits/q/answer?wait=60s", "");
    polling.write_all(poll.as_bytes()).await.unwrap();
    polling.read_exact(&mut first).await.unwrap();
    // Nobody cancels the drain here, so the poll goes on.
    assert!(!server.stop(Duration::from_millis(50)).await);
    rest(&mut polling).await;
}

#[tokio::test]
async fn whoever_sends_nothing_or_half_a_head_is_let_go() {
    let bench = Bench::new().await;
    let server = serve(&bench, limits(Duration::from_millis(500))).await;
    for half in
        ["", "PRI", "GET /healthz HTTP/1.1\r\nhost: x\r\nx-sl", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"]
    {
        let mut stream = TcpStream::connect(server.address()).await.unwrap();
        stream.write_all(half.as_bytes()).await.unwrap();
        let mut text = Vec::new();
        // Closed or reset, with or without a last word: but soon.
        let _ = timeout(Duration::from_secs(20), stream.read_to_end(&mut text)).await.unwrap();
    }
    // Keep-alive connections too.
    let mut stream = TcpStream::connect(server.address()).await.unwrap();
    stream.write_all(head("GET", "/healthz", "").as_bytes()).await.unwrap();
    assert!(rest(&mut stream).await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn a_stream_outlives_idle_connections_for_as_long_as_it_is_taken() {
    let bench = Bench::new().await;
    // Long enough for a busy machine to keep the stream fed.
    let idle = Duration::from_millis(1_500);
    let server = serve(&bench, limits(idle)).await;
    let open = async || {
        let mut stream = TcpStream::connect(server.address()).await.unwrap();
        stream.write_all(head("GET", "/v1/events", "").as_bytes()).await.unwrap();
        stream
    };
    // One that is told of something now and then, and one of a thread where nothing happens: the
    // heartbeat is rarer than this test's limit, so it is let go.
    let mut told = open().await;
    let mut silent = TcpStream::connect(server.address()).await.unwrap();
    silent.write_all(head("GET", "/v1/events?thread_id=none", "").as_bytes()).await.unwrap();
    let silent = tokio::spawn(async move { rest_or_cut(&mut silent).await });
    let mut seen = String::new();
    // A stream tells of what happens once it has begun.
    while !seen.contains("id: ") {
        let mut piece = [0; 4_096];
        let read = timeout(Duration::from_secs(20), told.read(&mut piece)).await.unwrap().unwrap();
        assert!(read > 0, "it did not begin: {seen}");
        seen.push_str(std::str::from_utf8(&piece[..read]).unwrap());
    }
    let began = tokio::time::Instant::now();
    let mut n = 0;
    while began.elapsed() < idle * 4 {
        bench.ask("t", &format!("q{n}")).await;
        while !seen.contains(&format!("\"q{n}\"")) {
            let mut piece = [0; 4_096];
            let read = timeout(Duration::from_secs(20), told.read(&mut piece)).await.unwrap();
            let read = read.unwrap();
            assert!(read > 0, "it was cut off: {seen}");
            seen.push_str(std::str::from_utf8(&piece[..read]).unwrap());
        }
        n += 1;
        tokio::time::sleep(idle / 30).await;
    }
    assert!(silent.await.unwrap().starts_with("HTTP/1.1 200"));
}

async fn rest_or_cut(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    let _ = timeout(Duration::from_secs(20), stream.read_to_end(&mut text)).await.unwrap();
    String::from_utf8(text).unwrap()
}

#[tokio::test]
async fn who_sends_too_much_still_reads_the_refusal() {
    let bench = Bench::new().await;
    let server = serve(&bench, Limits::default()).await;
    let size = 3 << 20;
    for more in [
        format!("content-type: application/json\r\ncontent-length: {size}\r\n"),
        "content-type: application/json\r\ntransfer-encoding: chunked\r\n".to_owned(),
    ] {
        let mut stream = TcpStream::connect(server.address()).await.unwrap();
        stream.write_all(head("POST", "/v1/waits", &more).as_bytes()).await.unwrap();
        let chunked = more.contains("chunked");
        if chunked {
            stream.write_all(format!("{size:x}\r\n").as_bytes()).await.unwrap();
        }
        stream.write_all(&vec![b' '; size]).await.unwrap();
        if chunked {
            stream.write_all(b"\r\n0\r\n\r\n").await.unwrap();
        }
        stream
            .write_all(head("GET", "/healthz", "connection: close\r\n").as_bytes())
            .await
            .unwrap();
        let text = rest(&mut stream).await;
        assert!(text.starts_with("HTTP/1.1 413"), "{text}");
        assert!(text.contains("request-too-large"), "{text}");
    }
}

#[tokio::test]
async fn more_connections_than_there_is_room_for_wait_for_their_turn() {
    let bench = Bench::new().await;
    let limits = Limits { connections: 1, idle: Duration::from_millis(500) };
    let server = serve(&bench, limits).await;
    let _idle = TcpStream::connect(server.address()).await.unwrap();
    let mut second = TcpStream::connect(server.address()).await.unwrap();
    second.write_all(head("GET", "/healthz", "connection: close\r\n").as_bytes()).await.unwrap();
    assert!(rest(&mut second).await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn without_keys_it_refuses_to_listen_openly() {
    let bench = Bench::with(config::Auth::default(), rules()).await;
    let start = |address: &str| {
        Server::start(bench.front.clone(), address.parse().unwrap(), None, Limits::default())
    };
    for open in ["0.0.0.0:0", "[::]:0", "10.0.0.1:0"] {
        let error = start(open).await.unwrap_err();
        assert!(matches!(error, ServerError::OpenWithoutKeys(_)), "{error}");
    }
    let first = start(LOOPBACK).await.unwrap();
    let error = start(&first.address().to_string()).await.unwrap_err();
    assert!(error.to_string().contains("[server] listen"), "{error}");
}

fn files(cert: &Path, key: &Path) -> TlsFiles {
    TlsFiles { cert: cert.to_owned(), key: key.to_owned() }
}

#[tokio::test]
async fn https_serves_both_versions_of_http() {
    let bench = Bench::new().await;
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tls");
    let good = files(&dir.join("localhost.pem"), &dir.join("localhost.key"));
    let start = |tls| {
        Server::start(bench.front.clone(), LOOPBACK.parse().unwrap(), Some(tls), Limits::default())
    };
    let server = start(good.clone()).await.unwrap();
    server.reload_tls().await.unwrap();
    let ca = std::fs::read(&good.cert).unwrap();
    let client = || {
        let ca = reqwest::Certificate::from_pem(&ca).unwrap();
        let provider = rustls::crypto::ring::default_provider();
        let _ = provider.install_default();
        reqwest::Client::builder().tls_certs_only([ca]).no_proxy()
    };
    let url = format!("https://localhost:{}/healthz", server.address().port());
    for (client, version) in [
        (client().http1_only().build().unwrap(), reqwest::Version::HTTP_11),
        (client().build().unwrap(), reqwest::Version::HTTP_2),
    ] {
        let got = client.get(&url).send().await.unwrap();
        assert_eq!((got.status().as_u16(), got.version()), (200, version));
    }
    let error = start(files(&dir.join("localhost.key"), &good.key)).await.unwrap_err();
    assert!(error.to_string().contains("localhost.key"), "{error}");
    let error = start(files(&dir.join("nothing.pem"), &good.key)).await.unwrap_err();
    assert!(error.to_string().contains("nothing.pem"), "{error}");
}
