//! Wires the parts, starts them, drains them, stops them.

use crate::answers::ReplyToSettings;
use crate::clock::{self, Clock};
use crate::config::{
    AnnouncerConfig, Config, PostgresUrl, RouteConfig, RouteTo, Sending, StoreUrl,
};
use crate::dispatch::{AnnouncerOutlet, Dispatcher, LaneConfig, LaneLimits};
use crate::intake::Intake;
use crate::registry::Replies;
use crate::store::postgres::{self, PostgresOptions, PostgresStore};
use crate::store::sqlite::{Location, Mint, OpenError, SqliteOptions, SqliteStore};
use crate::store::{Retention, Store, StoreError};
use crate::{answers, metrics, web};
use answerback_contract::{ConnectError, Connecting, Target};
use answerback_core::{Destination, Rules};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Dedupe keys and publish ids of forgotten waits are kept so long (contract, section 2).
const TOMBSTONES: Duration = Duration::from_secs(90 * 86_400);
/// Replies under an `Idempotency-Key` (contract, section 3).
const REPLIES: Duration = Duration::from_secs(86_400);
/// How often what is old is looked for, and how many waits are forgotten at a time.
const PURGE_EVERY: Duration = Duration::from_secs(600);
const PURGE_BATCH: usize = 500;

/// Why the daemon does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The store cannot be opened.
    #[error(transparent)]
    OpenStore(#[from] OpenError),
    /// The database cannot be opened.
    #[error(transparent)]
    OpenDatabase(#[from] postgres::OpenError),
    /// Opening the store was broken off.
    #[error("the store cannot be opened: {0}")]
    Broken(#[from] tokio::task::JoinError),
    /// The store does not work.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An announcer or route cannot be connected, and no retry would mend it.
    #[error("{kind} {name:?} cannot be used")]
    Connect {
        /// `announcer` or `route`.
        kind: &'static str,
        /// Its name.
        name: String,
        /// Why.
        #[source]
        source: ConnectError,
    },
    /// `[reply_to]` cannot be used.
    #[error("[reply_to] cannot be used: {0}")]
    ReplyTo(String),
    /// The listener cannot be opened.
    #[error(transparent)]
    Listen(#[from] web::ServerError),
}

/// A daemon that runs.
pub struct Daemon {
    address: SocketAddr,
    grace: Duration,
    store: Arc<dyn Store>,
    dispatcher: Dispatcher,
    server: web::Server,
    stop: CancellationToken,
    background: JoinSet<()>,
}

/// Opens the store that the configuration names.
///
/// # Errors
/// Why it cannot be opened.
pub async fn open_store(
    url: &StoreUrl,
    rules: Arc<Rules>,
    clock: Arc<dyn Clock>,
) -> Result<Arc<dyn Store>, StartError> {
    let mint: Mint = Arc::new(move || clock::fresh_event_id(&*clock));
    let location = match url {
        StoreUrl::Sqlite(path) => Location::File(path.clone()),
        StoreUrl::Memory => Location::Memory,
        StoreUrl::Postgres(PostgresUrl { url, listen_url }) => {
            let (url, listen_url) = (url.clone(), listen_url.clone());
            let options = PostgresOptions { url, listen_url, rules, mint };
            return Ok(Arc::new(PostgresStore::open(options).await?));
        }
    };
    let options = SqliteOptions { location, rules, mint };
    let store = tokio::task::spawn_blocking(move || SqliteStore::open(options)).await??;
    Ok(Arc::new(store))
}

impl Daemon {
    /// Starts everything; returns once requests are taken.
    ///
    /// # Errors
    /// What the operator has to mend first.
    pub async fn start(config: &Config, clock: Arc<dyn Clock>) -> Result<Self, StartError> {
        let metrics = metrics::install();
        let rules = Arc::new(config.rules());
        let store = open_store(&config.store, Arc::clone(&rules), Arc::clone(&clock)).await?;
        let lanes = connect(config).await?;
        let present = lanes.iter().map(|lane| lane.destination.clone()).collect();
        let retired = store.retire(present, clock.now()).await?;
        if retired > 0 {
            tracing::warn!(
                messages = retired,
                "queued for announcers or routes that are gone: kept as dead, retryable once they are back"
            );
        }
        let sending = &config.reply_to.sending;
        let replies = ReplyToSettings {
            allow: config.reply_to.allow.clone(),
            sender: Arc::new(Replies::new(&config.reply_to).map_err(StartError::ReplyTo)?),
            limits: limits(sending, answers::MAX_BYTES),
            schedule: sending.retry,
            breaker: sending.breaker,
        };
        let dispatcher =
            Dispatcher::start(Arc::clone(&store), Arc::clone(&clock), lanes, Arc::new(replies))
                .await?;
        let stop = CancellationToken::new();
        let mut background = JoinSet::new();
        let intake = Intake::start(&store, &clock, &dispatcher, &stop, &mut background);
        background.spawn(purge(
            Arc::clone(&store),
            Arc::clone(&clock),
            Retention {
                closed: config.retention.closed,
                dead: config.retention.dead,
                tombstones: TOMBSTONES,
                replies: REPLIES,
            },
            stop.clone(),
        ));
        background.spawn(metrics::upkeep(metrics.clone(), stop.clone()));
        let front = web::Front::new(web::ApiState {
            store: Arc::clone(&store),
            intake,
            clock,
            auth: web::Auth::new(&config.auth),
            rules,
            metrics,
            drain: stop.clone(),
        });
        let tls = config
            .server
            .tls
            .as_ref()
            .map(|tls| web::TlsFiles { cert: tls.cert_file.clone(), key: tls.key_file.clone() });
        let limits = web::Limits::default();
        let server = web::Server::start(front, config.server.listen, tls, limits).await?;
        let address = server.address();
        let grace = config.server.shutdown_grace;
        Ok(Self { address, grace, store, dispatcher, server, stop, background })
    }

    /// Where requests are taken.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops taking, finishes what is under way within the grace, and lets go of the store. What
    /// did not finish is sent again after the next start. Gives whether everything finished.
    pub async fn stop(mut self) -> bool {
        let until = Instant::now() + self.grace;
        // From here on whoever asks for more is told to come again, by a listener that still is there.
        self.stop.cancel();
        let sent = self.dispatcher.drain(self.grace).await;
        let served = self.server.stop(until.saturating_duration_since(Instant::now())).await;
        while self.background.join_next().await.is_some() {}
        self.store.close().await;
        served && sent
    }
}

/// Connects what the configuration names.
async fn connect(config: &Config) -> Result<Vec<LaneConfig>, StartError> {
    let mut lanes = Vec::new();
    for AnnouncerConfig { name, sending, target, include_answer, .. } in &config.announcers {
        let destination = Destination::Announcer(name.clone());
        lanes.push(lane("announcer", destination, target, sending, *include_answer).await?);
    }
    for RouteConfig { name, to, .. } in &config.routes {
        if let RouteTo::Send { sending, target, .. } = to {
            let destination = Destination::Route(name.clone());
            lanes.push(lane("route", destination, target, sending, true).await?);
        }
    }
    Ok(lanes)
}

async fn lane(
    kind: &'static str,
    destination: Destination,
    target: &Arc<dyn Target>,
    sending: &Sending,
    include_answer: bool,
) -> Result<LaneConfig, StartError> {
    let name = destination.label().to_owned();
    let connecting = Connecting { name: name.clone(), attempt_timeout: sending.timeout };
    let announcer = target.connect(&connecting).await.map_err(|source| StartError::Connect {
        kind,
        name,
        source,
    })?;
    let most = target.limits().message_bytes;
    Ok(LaneConfig {
        destination,
        outlet: Arc::new(AnnouncerOutlet::new(announcer, Arc::clone(target))),
        limits: limits(sending, most),
        schedule: sending.retry,
        breaker: sending.breaker,
        include_answer,
    })
}

/// The bounds of a lane whose service takes `most` bytes a message.
fn limits(sending: &Sending, most: usize) -> LaneLimits {
    LaneLimits {
        max_in_flight: sending.max_in_flight,
        max_bytes: sending.max_bytes.unwrap_or(most).min(most),
        attempt_timeout: sending.timeout,
    }
}

/// Forgets what is old, a little at a time.
async fn purge(
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    retention: Retention,
    stop: CancellationToken,
) {
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = tokio::time::sleep(PURGE_EVERY) => {}
        }
        loop {
            match store.purge(retention, PURGE_BATCH, clock.now()).await {
                Ok(0) => break,
                Ok(forgotten) => tracing::debug!(forgotten, "old waits were forgotten"),
                Err(error) => {
                    tracing::warn!(%error, "old waits cannot be forgotten now");
                    break;
                }
            }
            if stop.is_cancelled() {
                return;
            }
        }
    }
}

/// Runs until SIGTERM or SIGINT.
///
/// # Errors
/// What keeps it from starting.
pub async fn serve(config: &Config, clock: Arc<dyn Clock>) -> Result<(), StartError> {
    let daemon = Daemon::start(config, clock).await?;
    tracing::info!(
        address = %daemon.address(),
        store = %config.store,
        announcers = config.announcers.len(),
        routes = config.routes.len(),
        "ready"
    );
    // Only systemd listens; elsewhere there is no socket to tell.
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    stopped().await;
    tracing::info!(grace = ?config.server.shutdown_grace, "stopping: finishing what is under way");
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
    if !daemon.stop().await {
        tracing::warn!("the grace is over: what was under way is sent again after the next start");
    }
    Ok(())
}

/// Returns at SIGTERM or SIGINT.
async fn stopped() {
    use tokio::signal::unix::{SignalKind, signal};
    match (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) {
        (Ok(mut term), Ok(mut int)) => {
            tokio::select! {
                _ = term.recv() => {}
                _ = int.recv() => {}
            }
        }
        _ => {
            // Without handlers the signals end the process by themselves.
            std::future::pending::<()>().await;
        }
    }
}
