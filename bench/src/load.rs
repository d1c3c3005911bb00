//! The load generator. Closed loops send the next request when the last one was answered; an open
//! loop sends at a constant rate, whatever the answers do, and counts each latency from the moment
//! its request was due, so that a stalled daemon cannot hide the requests it held up.

use crate::clock::sleep_precisely;
use crate::envelope::{Number, Template};
use crate::ledger::Ledger;
use crate::wire::Client;
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Barrier, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// How often a backlog's window moves on.
const WINDOW_STEP: Duration = Duration::from_millis(1);

/// After so many broken exchanges in a row a connection gives up.
const GIVE_UP: u32 = 20;

/// When requests are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Pace {
    /// As fast as answers come.
    Closed,
    /// As fast as answers come, but never with more than so many waits accepted and not yet
    /// received everywhere: what the daemon can sustain, without a growing backlog.
    Window(u32),
    /// So many a second.
    Open(f64),
}

/// What to send.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    /// The daemons, or what they are compared to; connections are spread over them.
    pub(crate) targets: Vec<SocketAddr>,
    /// Keep-alive connections.
    pub(crate) connections: usize,
    /// Threads to spread them over.
    pub(crate) threads: usize,
    /// When requests are sent.
    pub(crate) pace: Pace,
    /// Ends after so many requests …
    pub(crate) waits: Number,
    /// … or after this time.
    pub(crate) time: Duration,
}

/// What went wrong.
#[derive(Debug, Default, Clone)]
pub(crate) struct Faults {
    /// Answers other than 202, by status.
    pub(crate) refused: BTreeMap<u16, u64>,
    /// Exchanges without an answer.
    pub(crate) broken: u64,
    /// The first fault in words.
    pub(crate) first: Option<String>,
}

impl Faults {
    /// How many requests were not accepted.
    pub(crate) fn total(&self) -> u64 {
        self.broken + self.refused.values().sum::<u64>()
    }

    fn refuse(&mut self, status: u16, body: &[u8]) {
        *self.refused.entry(status).or_default() += 1;
        self.first.get_or_insert_with(|| {
            format!("{status}: {}", String::from_utf8_lossy(&body[..body.len().min(300)]))
        });
    }

    fn broke(&mut self, error: &anyhow::Error) {
        self.broken += 1;
        self.first.get_or_insert_with(|| format!("{error:#}"));
    }
}

struct Shared {
    load: Load,
    ledger: Arc<Ledger>,
    /// Set once all are connected.
    began: OnceLock<u32>,
    /// Where all threads meet twice: connected, and under way.
    line: Barrier,
    /// What lets requests go, unless they go freely. Closed at the end.
    permits: Semaphore,
    ended: AtomicBool,
    faults: Mutex<Faults>,
}

/// A running load.
pub(crate) struct Running {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<Result<()>>>,
}

/// Starts to send.
pub(crate) fn start(load: Load, ledger: &Arc<Ledger>) -> Running {
    let permits = match load.pace {
        Pace::Window(window) => window as usize,
        Pace::Closed | Pace::Open(_) => 0,
    };
    let count = load.threads.clamp(1, load.connections.max(1));
    let paced = usize::from(matches!(load.pace, Pace::Open(_)));
    let shared = Arc::new(Shared {
        began: OnceLock::new(),
        line: Barrier::new(count + paced + 1),
        ledger: Arc::clone(ledger),
        permits: Semaphore::new(permits),
        ended: AtomicBool::new(false),
        faults: Mutex::default(),
        load,
    });
    let mut threads: Vec<_> = (0..count)
        .map(|thread| {
            let shared = Arc::clone(&shared);
            let all = shared.load.connections;
            let targets = &shared.load.targets;
            let nth = |connection: usize| targets[connection % targets.len()];
            let targets: Vec<_> = (thread..all).step_by(count).map(nth).collect();
            std::thread::spawn(move || shared.drive(&targets, thread == 0))
        })
        .collect();
    if let Pace::Open(rate) = shared.load.pace {
        let shared = Arc::clone(&shared);
        threads.push(std::thread::spawn(move || {
            shared.keep_pace(rate);
            Ok(())
        }));
    }
    shared.line.wait();
    shared.began.get_or_init(|| ledger.clock.micros());
    shared.line.wait();
    Running { shared, threads }
}

impl Running {
    /// Whether all requests have been answered.
    pub(crate) fn is_finished(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// When it began, in microseconds of the ledger's clock.
    pub(crate) fn began(&self) -> u32 {
        self.shared.began()
    }

    /// Waits for the end.
    pub(crate) fn join(self) -> Result<Faults> {
        for thread in self.threads {
            thread.join().map_err(|_| anyhow::anyhow!("a thread of the generator panicked"))??;
        }
        Ok(self.shared.faults().clone())
    }
}

impl Shared {
    fn faults(&self) -> std::sync::MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn began(&self) -> u32 {
        self.began.get().copied().unwrap_or_default()
    }

    /// Waits until all threads are connected, and the time runs.
    fn line_up(&self) {
        self.line.wait();
        self.line.wait();
    }

    /// One thread: its connections on a runtime of its own.
    fn drive(self: &Arc<Self>, targets: &[SocketAddr], first: bool) -> Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("no runtime for the generator");
        let connect = async || {
            let mut clients = Vec::with_capacity(targets.len());
            for &target in targets {
                clients.push((target, Client::connect(target).await?));
            }
            anyhow::Ok(clients)
        };
        let connected = runtime.and_then(|runtime| {
            let clients = runtime.block_on(connect())?;
            Ok((runtime, clients))
        });
        // Whatever came of it: the others wait at the line.
        self.line_up();
        let (runtime, clients) = connected.inspect_err(|_| self.end())?;
        runtime.block_on(async {
            let mut tasks = JoinSet::new();
            for (target, client) in clients {
                tasks.spawn(Arc::clone(self).converse(target, client));
            }
            let shared = Arc::clone(self);
            if first && let Pace::Window(_) = self.load.pace {
                tokio::spawn(async move { shared.move_window().await });
            }
            while let Some(ended) = tasks.join_next().await {
                ended.context("a connection's task panicked")??;
            }
            Ok(())
        })
    }

    fn time_is_over(&self) -> bool {
        let spent = self.ledger.clock.micros().saturating_sub(self.began());
        u128::from(spent) >= self.load.time.as_micros()
    }

    /// The next wait to send, once it may be sent; `None` at the end.
    async fn next(&self) -> Option<Number> {
        match self.load.pace {
            Pace::Closed => {}
            Pace::Window(_) | Pace::Open(_) => self.permits.acquire().await.ok()?.forget(),
        }
        if self.time_is_over() && !matches!(self.load.pace, Pace::Open(_)) {
            self.end();
            return None;
        }
        let number = self.ledger.claim(self.load.waits);
        if number.is_none() {
            self.end();
        }
        number
    }

    fn end(&self) {
        self.ended.store(true, Relaxed);
        self.permits.close();
    }

    async fn converse(self: Arc<Self>, target: SocketAddr, mut client: Client) -> Result<()> {
        let mut request = Template::request(&target.to_string(), "/v1/waits");
        let mut broken = 0;
        while let Some(number) = self.next().await {
            let sent = match self.load.pace {
                Pace::Open(rate) => self.due(number, rate),
                Pace::Closed | Pace::Window(_) => self.ledger.clock.micros(),
            };
            self.ledger.sent.put(number, sent);
            match client.exchange(request.of(number)).await {
                Ok(response) if response.status == 202 => {
                    self.ledger.accept(number);
                    broken = 0;
                }
                Ok(response) => {
                    self.faults().refuse(response.status, response.body);
                    broken = 0;
                    self.release();
                }
                Err(error) => {
                    self.faults().broke(&error);
                    self.release();
                    broken += 1;
                    if broken == GIVE_UP {
                        self.end();
                        return Err(error.context("connection after connection broke"));
                    }
                    client = Client::connect(target).await?;
                }
            }
        }
        Ok(())
    }

    /// A wait that was not accepted will not be received either: its place in the window is free.
    fn release(&self) {
        if let Pace::Window(_) = self.load.pace {
            self.permits.add_permits(1);
        }
    }

    /// Lets as many waits go as have been received everywhere.
    async fn move_window(&self) {
        let mut ticks = tokio::time::interval(WINDOW_STEP);
        let mut seen = self.ledger.received_everywhere();
        while !self.ended.load(Relaxed) {
            ticks.tick().await;
            let now = self.ledger.received_everywhere();
            self.permits.add_permits(now.saturating_sub(seen) as usize);
            seen = seen.max(now);
            if self.time_is_over() {
                self.end();
            }
        }
    }

    fn due(&self, number: Number, rate: f64) -> u32 {
        self.began().saturating_add((f64::from(number) / rate * 1e6) as u32)
    }

    /// Lets each request of an open loop go when it is due.
    fn keep_pace(&self, rate: f64) {
        self.line_up();
        let mut released = 0;
        for number in 0..self.load.waits {
            let due = self.due(number, rate);
            let now = self.ledger.clock.micros();
            if u128::from(due - self.began()) >= self.load.time.as_micros() {
                break;
            }
            if due > now {
                sleep_precisely(Duration::from_micros(u64::from(due - now)));
            }
            if self.permits.is_closed() {
                return;
            }
            self.permits.add_permits(1);
            released += 1;
        }
        // Those that are due but wait for a free connection still go. Closing takes even a permit
        // back that its connection has not looked at yet.
        while self.ledger.claimed() < released && !self.permits.is_closed() {
            sleep_precisely(Duration::from_millis(1));
        }
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Witness;
    use crate::stubs::{Receiver, Receivers};

    fn load(pace: Pace, waits: Number, target: SocketAddr) -> Load {
        let time = Duration::from_secs(60);
        Load { targets: vec![target], connections: 8, threads: 2, pace, waits, time }
    }

    fn run(pace: Pace, waits: Number) -> (Arc<Ledger>, Faults) {
        let ledger = Arc::new(Ledger::new(&[]));
        let receivers = Receivers::start(vec![Receiver::Accepting], &ledger).unwrap();
        let target = receivers.addresses()[0];
        let faults = start(load(pace, waits, target), &ledger).join().unwrap();
        (ledger, faults)
    }

    #[test]
    fn a_closed_loop_sends_each_wait_once() {
        let (ledger, faults) = run(Pace::Closed, 500);
        assert_eq!((ledger.accepted(), faults.total()), (500, 0), "{faults:?}");
        assert!((0..500).all(|n| ledger.sent.get(n) <= ledger.accepted.get(n)));
    }

    #[test]
    fn a_window_lets_no_more_go_than_it_is_wide() {
        let ledger = Arc::new(Ledger::new(&[("never", Witness::Stub)]));
        let receivers = Receivers::start(vec![Receiver::Accepting], &ledger).unwrap();
        let mut load = load(Pace::Window(20), 500, receivers.addresses()[0]);
        load.time = Duration::from_millis(300);
        start(load, &ledger).join().unwrap();
        assert_eq!(ledger.accepted(), 20);
    }

    #[test]
    fn an_open_loop_counts_from_when_each_request_was_due() {
        let (ledger, faults) = run(Pace::Open(2000.0), 100);
        assert_eq!((ledger.accepted(), faults.total()), (100, 0), "{faults:?}");
        let first = ledger.sent.get(0).unwrap();
        assert_eq!(ledger.sent.get(99).unwrap() - first, 49_500);
    }

    #[test]
    fn a_target_that_is_not_there_is_an_error_at_once() {
        let ledger = Arc::new(Ledger::new(&[]));
        let nobody = crate::daemon::free_address().unwrap();
        for pace in [Pace::Closed, Pace::Window(5), Pace::Open(100.0)] {
            let error = start(load(pace, 500, nobody), &ledger).join().unwrap_err();
            assert!(error.to_string().contains("cannot reach"), "{error:#}");
        }
    }

    #[test]
    fn refusals_are_counted_by_status() {
        let ledger = Arc::new(Ledger::new(&[]));
        let receivers = Receivers::start(vec![Receiver::Refusing], &ledger).unwrap();
        let load = load(Pace::Closed, 10, receivers.addresses()[0]);
        let faults = start(load, &ledger).join().unwrap();
        assert_eq!(faults.refused, BTreeMap::from([(503, 10)]));
        assert_eq!(ledger.accepted(), 0);
    }
}
