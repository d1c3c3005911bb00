//! The client against a receiver made of plain TCP, which can misbehave in ways that no HTTP
//! server library allows.

use super::*;
use crate::testing::message;
use answerback_contract::{Rejection, Time};
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

/// An attempt that is meant to run into its timeout.
const SHORT: Attempt = Attempt { now: Time::MIN, timeout: Duration::from_millis(100) };
const ATTEMPT: Attempt = Attempt { now: Time::MIN, timeout: Duration::from_secs(5) };

fn guard() -> AddressGuard {
    AddressGuard::allowing(&["127.0.0.0/8", "::1"]).unwrap()
}

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

async fn announcer(address: SocketAddr, purpose: Purpose) -> Arc<dyn Announcer> {
    let url = format!("http://{address}/hook?k=s3cret");
    let secret = "topsecret".into();
    let target = HttpTarget::for_url(&url, Some(&secret), guard(), purpose).unwrap();
    target.connect(&connecting()).await.unwrap()
}

fn connecting() -> Connecting {
    Connecting { name: "test".to_owned(), attempt_timeout: ATTEMPT.timeout }
}

async fn announce(announcer: &dyn Announcer, attempt: Attempt) -> Outcome {
    announcer.announce(&[message(b"{\"a\": 1}")], attempt).await.remove(0)
}

/// Reads one request: head and body.
async fn read_request(stream: &mut TcpStream) -> Option<(String, Vec<u8>)> {
    let mut bytes = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let end = bytes.windows(4).position(|w| w == b"\r\n\r\n");
        if let Some(end) = end {
            let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
            let length: usize = head
                .lines()
                .find_map(|l| l.to_lowercase().strip_prefix("content-length: ").map(str::to_owned))
                .map_or(0, |l| l.parse().unwrap());
            if bytes.len() >= end + 4 + length {
                return Some((head, bytes[end + 4..].to_vec()));
            }
        }
        match stream.read(&mut chunk).await {
            Ok(0) | Err(_) => return None,
            Ok(n) => bytes.extend_from_slice(&chunk[..n]),
        }
    }
}

/// Answers every request of every connection with the same bytes, and tells of each request which
/// connection it came on.
async fn receiver(response: &'static [u8]) -> (SocketAddr, mpsc::Receiver<(usize, String)>) {
    let (listener, address) = listen().await;
    let (tell, told) = mpsc::channel(64);
    tokio::spawn(async move {
        for connection in 0.. {
            let (mut stream, _) = listener.accept().await.unwrap();
            let tell = tell.clone();
            tokio::spawn(async move {
                while let Some((head, _)) = read_request(&mut stream).await {
                    let _ = tell.send((connection, head)).await;
                    let _ = stream.write_all(response).await;
                }
            });
        }
    });
    (address, told)
}

fn reason(outcome: &Outcome) -> &str {
    match outcome {
        Outcome::Retry { reason, .. } | Outcome::Rejected { reason, .. } => reason,
        Outcome::Delivered => "delivered",
    }
}

#[tokio::test]
async fn one_connection_carries_message_after_message() {
    let (address, mut told) = receiver(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
    let announcer = announcer(address, Purpose::Announce).await;
    for _ in 0..3 {
        assert_eq!(announce(&*announcer, ATTEMPT).await, Outcome::Delivered);
        let (connection, head) = told.recv().await.unwrap();
        assert_eq!(connection, 0);
        assert!(head.starts_with("POST /hook?k=s3cret HTTP/1.1\r\n"), "{head}");
        assert!(head.contains("\r\nX-Agent-Wait-Signature: sha256="), "{head}");
        assert!(head.contains("\r\nContent-Type: application/json\r\n"), "{head}");
        assert!(head.contains("\r\nUser-Agent: answerback/"), "{head}");
    }
}

#[tokio::test]
async fn a_connection_that_the_receiver_closed_is_replaced() {
    let (listener, address) = listen().await;
    let announcer = announcer(address, Purpose::Announce).await;
    for _ in 0..3 {
        let serve = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            read_request(&mut stream).await.unwrap();
            // No "connection: close": the client learns of it only by the end of the stream.
            stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
        };
        let (outcome, ()) = tokio::join!(announce(&*announcer, ATTEMPT), serve);
        assert_eq!(outcome, Outcome::Delivered);
    }
}

#[tokio::test]
async fn a_reset_is_a_retry_without_a_second_try_of_its_own() {
    let (listener, address) = listen().await;
    let announcer = announcer(address, Purpose::Announce).await;
    let serve = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        read_request(&mut stream).await.unwrap();
        stream.set_zero_linger().unwrap();
        drop(stream);
    };
    let (outcome, ()) = tokio::join!(announce(&*announcer, ATTEMPT), serve);
    assert!(matches!(outcome, Outcome::Retry { .. }), "{outcome:?}");
    assert!(!reason(&outcome).contains("s3cret"), "{outcome:?}");
    let again = futures::FutureExt::now_or_never(listener.accept());
    assert!(again.is_none(), "a second connection");
}

#[tokio::test]
async fn a_refused_connection_is_a_retry_that_says_so() {
    let (listener, address) = listen().await;
    drop(listener);
    let announcer = announcer(address, Purpose::Announce).await;
    let outcome = announce(&*announcer, ATTEMPT).await;
    assert!(reason(&outcome).starts_with("could not connect: "), "{outcome:?}");
    let problem = announcer.probe().await.unwrap_err().to_string();
    assert!(problem.contains("check host, port and firewall"), "{problem}");
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let (elsewhere, mut there) = receiver(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
    let (listener, address) = listen().await;
    let announcer = announcer(address, Purpose::Announce).await;
    let serve = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        read_request(&mut stream).await.unwrap();
        let response = format!(
            "HTTP/1.1 307 Temporary Redirect\r\nlocation: http://{elsewhere}/\r\nretry-after: 9\r\ncontent-length: 0\r\n\r\n"
        );
        stream.write_all(response.as_bytes()).await.unwrap();
    };
    let (outcome, ()) = tokio::join!(announce(&*announcer, ATTEMPT), serve);
    let Outcome::Retry { reason, after } = outcome else { panic!("{outcome:?}") };
    assert!(reason.contains("never followed"), "{reason}");
    assert_eq!(after, Some(Duration::from_secs(9)));
    assert!(there.try_recv().is_err());
}

#[tokio::test]
async fn statuses_become_outcomes_by_purpose() {
    let (address, _told) = receiver(b"HTTP/1.1 410 Gone\r\ncontent-length: 0\r\n\r\n").await;
    for (purpose, wanted) in
        [(Purpose::Announce, Rejection::Gone), (Purpose::Answer, Rejection::HostClosed)]
    {
        let announcer = announcer(address, purpose).await;
        let outcome = announce(&*announcer, ATTEMPT).await;
        assert!(
            matches!(outcome, Outcome::Rejected { rejection, .. } if rejection == wanted),
            "{outcome:?}"
        );
    }
}

#[tokio::test]
async fn a_body_that_never_ends_is_read_to_its_bound_only() {
    let (listener, address) = listen().await;
    let announcer = announcer(address, Purpose::Announce).await;
    let serve = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        read_request(&mut stream).await.unwrap();
        let head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        stream.write_all(head).await.unwrap();
        let mut sent = 0_usize;
        let chunk = [b"400\r\n".as_slice(), &[b'x'; 1024], b"\r\n"].concat();
        while stream.write_all(&chunk).await.is_ok() {
            sent += 1024;
        }
        sent
    };
    let (outcome, sent) = tokio::join!(announce(&*announcer, ATTEMPT), serve);
    assert_eq!(outcome, Outcome::Delivered);
    // What the kernel's buffers take is sent as well, but the client went away.
    assert!(sent < 64 * 1024 * 1024, "{sent}");
}

#[tokio::test]
async fn a_huge_announced_body_is_not_read_at_all() {
    let (address, mut told) =
        receiver(b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\nstart").await;
    let announcer = announcer(address, Purpose::Announce).await;
    assert_eq!(announce(&*announcer, ATTEMPT).await, Outcome::Delivered);
    assert_eq!(announce(&*announcer, ATTEMPT).await, Outcome::Delivered);
    assert_eq!(told.recv().await.unwrap().0, 0);
    assert_eq!(told.recv().await.unwrap().0, 1, "the connection must not be used again");
}

#[tokio::test]
async fn a_receiver_that_says_nothing_ends_with_the_attempt() {
    let (listener, address) = listen().await;
    let announcer = announcer(address, Purpose::Announce).await;
    let serve = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        read_request(&mut stream).await.unwrap();
        // Ends when the client gives the connection up.
        read_request(&mut stream).await
    };
    let (outcome, rest) = tokio::join!(announce(&*announcer, SHORT), serve);
    assert_eq!(reason(&outcome), "no response within 100ms");
    assert!(rest.is_none());
}

#[tokio::test]
async fn a_head_that_drips_ends_with_the_attempt() {
    let (listener, address) = listen().await;
    let announcer = announcer(address, Purpose::Announce).await;
    let serve = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        read_request(&mut stream).await.unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\nx: ").await.unwrap();
        let mut pause = tokio::time::interval(Duration::from_millis(10));
        let mut dripped = 0;
        while stream.write_all(b"x").await.is_ok() {
            pause.tick().await;
            dripped += 1;
        }
        dripped
    };
    let (outcome, dripped) = tokio::join!(announce(&*announcer, SHORT), serve);
    assert!(matches!(outcome, Outcome::Retry { .. }), "{outcome:?}");
    assert!(dripped < 1_000, "{dripped}");
}

#[tokio::test]
async fn a_body_that_drips_changes_nothing_once_the_status_is_known() {
    let (listener, address) = listen().await;
    let announcer = announcer(address, Purpose::Announce).await;
    let serve = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        read_request(&mut stream).await.unwrap();
        let head = b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nx";
        stream.write_all(head).await.unwrap();
        // Ends when the client gives the connection up.
        read_request(&mut stream).await
    };
    let (outcome, rest) = tokio::join!(announce(&*announcer, SHORT), serve);
    assert_eq!(outcome, Outcome::Delivered);
    assert!(rest.is_none());
}

#[tokio::test]
async fn a_name_that_resolves_to_loopback_is_refused_at_the_connection() {
    let (address, mut told) = receiver(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
    let connections = Connections::new(AddressGuard::default(), ATTEMPT.timeout);
    let url = Url::parse(&format!("http://localhost:{}/", address.port())).unwrap();
    let client = connections.client(&url).unwrap();
    let body = Bytes::from_static(b"{}");
    let outcome = send(client, url, HeaderMap::new(), body, Purpose::Announce, ATTEMPT).await;
    assert!(matches!(outcome, Outcome::Retry { .. }), "{outcome:?}");
    assert!(reason(&outcome).contains("is loopback"), "{outcome:?}");
    assert!(reason(&outcome).contains("allow_private"), "{outcome:?}");
    assert!(told.try_recv().is_err());
}

#[tokio::test]
async fn an_answer_goes_to_its_own_url_and_a_refused_one_is_dead() {
    let (address, mut told) = receiver(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
    let secret = "topsecret".into();
    let sender = ReplySender::new(Some(&secret), guard(), ATTEMPT.timeout).unwrap();
    let m = message(b"{\"answer\":1}");
    for path in ["one", "two"] {
        let url = format!("http://{address}/{path}");
        assert_eq!(sender.send(&url, &m, ATTEMPT).await, Outcome::Delivered);
        let (connection, head) = told.recv().await.unwrap();
        assert!(head.starts_with(&format!("POST /{path} ")), "{head}");
        assert_eq!(connection, 0, "connections are shared");
    }
    let url = format!("http://localhost:{}/", address.port());
    assert_eq!(sender.send(&url, &m, ATTEMPT).await, Outcome::Delivered);
    for url in ["http://10.0.0.1/", "ftp://example.com", "nonsense", "http://u:p@127.0.0.1/"] {
        let outcome = sender.send(url, &m, ATTEMPT).await;
        assert!(matches!(outcome, Outcome::Rejected { .. }), "{url}: {outcome:?}");
    }
}

#[tokio::test]
async fn a_probe_connects_and_sends_nothing() {
    let (listener, address) = listen().await;
    let announcer = announcer(address, Purpose::Announce).await;
    let serve = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await.unwrap();
        bytes
    };
    let (probed, bytes) = tokio::join!(announcer.probe(), serve);
    probed.unwrap();
    assert!(bytes.is_empty());
}

#[tokio::test]
async fn tls_to_a_receiver_that_speaks_none_is_a_retry() {
    let (address, _told) = receiver(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
    let url = format!("https://{address}/");
    let target = HttpTarget::for_url(&url, None, guard(), Purpose::Announce).unwrap();
    // Where the system has no roots, connecting already says so.
    let announcer = match target.connect(&connecting()).await {
        Ok(announcer) => announcer,
        Err(e) => return assert!(e.to_string().contains("CA certificates"), "{e}"),
    };
    let short = Attempt { timeout: Duration::from_millis(200), ..ATTEMPT };
    let outcome = announce(&*announcer, short).await;
    assert!(matches!(outcome, Outcome::Retry { .. }), "{outcome:?}");
}

#[test]
fn what_is_shown_of_a_target_has_no_path() {
    let url = "https://hooks.example.com:8443/T000/B000/s3cret?k=s3cret";
    let target =
        HttpTarget::for_url(url, None, AddressGuard::default(), Purpose::Announce).unwrap();
    assert_eq!(target.describe(), "https://hooks.example.com:8443");
}
