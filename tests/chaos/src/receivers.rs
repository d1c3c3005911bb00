//! Whom the daemons send to: one HTTP server with a path for each receiver. Each refuses, hangs, is
//! slow and loses acknowledgements now and then, and all the time while it is down.

use crate::clock::Watch;
use crate::dice::Dice;
use crate::history::{Arrival, Recorder, Span, Verdict};
use crate::load::Bodies;
use crate::message::Members;
use crate::schedule::Place;
use crate::setup::SENDER;
use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use percent_encoding::percent_decode_str;
use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// How a receiver is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Health {
    Well,
    Down,
    Hanging,
}

/// What a receiver is about to do.
#[derive(Clone, Copy, Debug)]
struct Deed {
    verdict: Verdict,
    late: Duration,
}

/// The server, while it is not dropped.
#[derive(Debug)]
pub struct Receivers {
    addr: SocketAddr,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    health: Mutex<HashMap<Place, Health>>,
    dice: Mutex<Dice>,
    calm: AtomicBool,
    watch: Watch,
    recorder: Recorder,
    bodies: Bodies,
    /// Announcements that approvers are told of.
    news: mpsc::Sender<Arrival>,
}

impl Receivers {
    /// On a free loopback port.
    ///
    /// # Errors
    /// When there is none.
    pub async fn start(
        seed: u64,
        watch: Watch,
        recorder: Recorder,
        bodies: Bodies,
        news: mpsc::Sender<Arrival>,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let addr = listener.local_addr()?;
        let shared = Arc::new(Shared {
            health: Mutex::default(),
            dice: Mutex::new(Dice::new(seed, "receivers")),
            calm: AtomicBool::new(false),
            watch,
            recorder,
            bodies,
            news,
        });
        let task = tokio::spawn(serve(listener, Arc::clone(&shared)));
        Ok(Self { addr, shared, task })
    }

    /// `http://127.0.0.1:port`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// It refuses everything.
    pub fn down(&self, place: Place) {
        self.shared.set(place, Health::Down);
    }

    /// It answers nothing.
    pub fn hang(&self, place: Place) {
        self.shared.set(place, Health::Hanging);
    }

    /// It is as it usually is.
    pub fn well(&self, place: Place) {
        self.shared.set(place, Health::Well);
    }

    /// From now on everything is taken at once.
    pub fn calm(&self) {
        self.shared.calm.store(true, Ordering::SeqCst);
    }
}

impl Drop for Receivers {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let _ = stream.set_nodelay(true);
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            let service = service_fn(move |request| take(Arc::clone(&shared), request));
            let mut http = hyper::server::conn::http1::Builder::new();
            http.timer(TokioTimer::new());
            let _ = http.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

type Served = Result<Response<Full<Bytes>>, io::Error>;

/// Closes the connection.
fn cut() -> Served {
    Err(io::Error::other("cut on purpose"))
}

async fn take(shared: Arc<Shared>, request: Request<Incoming>) -> Served {
    let (parts, body) = request.into_parts();
    let Ok(body) = body.collect().await else { return cut() };
    let begin = shared.watch.now();
    let place =
        Place::SERVED.into_iter().find(|p| parts.uri.path().trim_start_matches('/') == p.name());
    let place = place.unwrap_or(Place::ReplyTo);
    let Some(arrival) = shared.read(place, begin, &parts.headers, &body.to_bytes()) else {
        shared.recorder.mishap(begin, format!("{} got what it cannot read", place.name()));
        return status(400);
    };
    let Deed { verdict, late } = shared.decide(place);
    let arrival = Arrival { verdict, ..arrival };
    if place == Place::Hook && verdict.taken() {
        // The approvers are behind: this question is not answered.
        let _ = shared.news.try_send(arrival.clone());
    }
    // Written down however this ends, also when the sender goes away meanwhile.
    let _noted = Noted { shared: Arc::clone(&shared), arrival: Some(arrival) };
    if !late.is_zero() {
        tokio::time::sleep(late).await;
    }
    match verdict {
        Verdict::Took => status(200),
        Verdict::LostAck => cut(),
        Verdict::Refused(code) => status(code),
        Verdict::Hung => std::future::pending().await,
    }
}

fn status(code: u16) -> Served {
    let mut response = Response::new(Full::new(Bytes::new()));
    *response.status_mut() = http::StatusCode::from_u16(code).unwrap_or_default();
    Ok(response)
}

/// An arrival that is written down when it is over.
struct Noted {
    shared: Arc<Shared>,
    arrival: Option<Arrival>,
}

impl Drop for Noted {
    fn drop(&mut self) {
        if let Some(mut arrival) = self.arrival.take() {
            arrival.span.end = self.shared.watch.now();
            self.shared.recorder.with(|h| h.arrivals.push(arrival));
        }
    }
}

impl Shared {
    fn set(&self, place: Place, health: Health) {
        self.health.lock().unwrap_or_else(PoisonError::into_inner).insert(place, health);
    }

    fn decide(&self, place: Place) -> Deed {
        let at_once = |verdict| Deed { verdict, late: Duration::ZERO };
        if self.calm.load(Ordering::SeqCst) {
            return at_once(Verdict::Took);
        }
        let health =
            self.health.lock().unwrap_or_else(PoisonError::into_inner).get(&place).copied();
        match health.unwrap_or(Health::Well) {
            Health::Down => return at_once(Verdict::Refused(503)),
            Health::Hanging => return at_once(Verdict::Hung),
            Health::Well => {}
        }
        let mut dice = self.dice.lock().unwrap_or_else(PoisonError::into_inner);
        match dice.below(1_000) {
            0..40 => at_once(Verdict::Refused(500)),
            40..70 => at_once(Verdict::Refused(503)),
            70..90 => at_once(Verdict::Refused(429)),
            90..120 => at_once(Verdict::LostAck),
            120..150 => Deed { verdict: Verdict::Took, late: dice.pause(50, 700) },
            150..155 => at_once(Verdict::Hung),
            _ => at_once(Verdict::Took),
        }
    }

    fn read(&self, place: Place, begin: u64, headers: &HeaderMap, body: &Bytes) -> Option<Arrival> {
        let header = |name: &str| headers.get(name).and_then(|v| v.to_str().ok());
        let text = std::str::from_utf8(body).ok()?;
        let members = Members::read(text)?;
        let key = percent_decode_str(header("x-agent-wait-dedupe-key")?).decode_utf8().ok()?;
        let event_id = members.text("event_id").unwrap_or_default();
        let to_host = matches!(place, Place::Host | Place::ReplyTo);
        Some(Arrival {
            span: Span { begin, end: begin },
            place,
            replica: header(SENDER).and_then(|n| n.parse().ok()),
            event: header("x-agent-wait-event")?.into(),
            dedupe_key: key.as_ref().into(),
            thread: members.text("thread_id")?.into(),
            question: members.text("question_id")?.into(),
            generation: (!to_host).then(|| members.generation()),
            body: self.bodies.shared(&event_id, text),
            event_id: event_id.into(),
            answer: members.raw("answer").filter(|_| to_host).map(Into::into),
            via: header("x-answerback-answered-via").map(Into::into),
            verdict: Verdict::Took,
            offset: None,
        })
    }
}
