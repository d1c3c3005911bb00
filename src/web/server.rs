//! The listener: connections counted, watched for idleness, and let go in good order.
//!
//! HTTP/1.1 and HTTP/2 on one port, told apart by what the client sends first; over TLS too, where
//! certificate files are configured.

use super::events::Stream;
use super::front::Front;
use axum::body::Body;
use axum::response::Response;
use axum_server::accept::Accept;
use axum_server::tls_rustls::{RustlsAcceptor, RustlsConfig};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;

/// The largest head of a request. Ids have up to 2,048 bytes, percent-encoded three times that, and
/// a path and its query hold two.
const HEAD_BYTES: usize = 64 << 10;
/// Requests at a time on one HTTP/2 connection.
const STREAMS: u32 = 128;
/// How long to wait when no connection can be accepted, usually because no file is free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Files that the process needs for other things than callers.
const OWN_FILES: usize = 200;

/// How much a listener bears.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at a time; more wait to be accepted.
    pub connections: usize,
    /// How long a connection may be idle, or send the head of a request.
    pub idle: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { connections: connections(), idle: Duration::from_secs(30) }
    }
}

/// As many as there are files for.
fn connections() -> usize {
    std::fs::read_to_string("/proc/self/limits")
        .ok()
        .and_then(|text| open_files(&text))
        .unwrap_or(1_024)
        .saturating_sub(OWN_FILES)
        .clamp(64, 16_384)
}

/// The soft limit of open files, out of Linux' `/proc/self/limits`.
fn open_files(limits: &str) -> Option<usize> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(usize::MAX),
        number => number.parse().ok(),
    }
}

/// PEM files for HTTPS.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The certificate and those that lead to a root.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// Why nothing is served.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address cannot be had.
    #[error(
        "cannot listen on {address}: {source}; choose another [server] listen, or stop what uses it"
    )]
    Listen {
        /// Which.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// Whoever can reach the address could do anything.
    #[error("will not listen on {0} without [auth] keys; configure keys, or listen on 127.0.0.1")]
    OpenWithoutKeys(SocketAddr),
    /// The certificate or its key cannot be used.
    #[error("cannot use {} with {}: {source}", cert.display(), key.display())]
    Tls {
        /// The certificate's file.
        cert: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// A listener that serves. Dropping it stops it at once.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    stop: CancellationToken,
    tls: Option<(RustlsConfig, TlsFiles)>,
    accepting: JoinHandle<JoinSet<()>>,
}

impl Server {
    /// Listens and serves.
    ///
    /// # Errors
    /// [`ServerError`] says what the operator can do.
    pub async fn start(
        front: Front,
        address: SocketAddr,
        tls: Option<TlsFiles>,
        limits: Limits,
    ) -> Result<Self, ServerError> {
        if front.is_open() && !address.ip().to_canonical().is_loopback() {
            return Err(ServerError::OpenWithoutKeys(address));
        }
        let tls = match tls {
            None => None,
            Some(files) => match RustlsConfig::from_pem_file(&files.cert, &files.key).await {
                Ok(config) => Some((config, files)),
                Err(source) => {
                    return Err(ServerError::Tls { cert: files.cert, key: files.key, source });
                }
            },
        };
        let listen = |source| ServerError::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        let stop = CancellationToken::new();
        let acceptor = tls.as_ref().map(|(config, _)| RustlsAcceptor::new(config.clone()));
        let port = Port { front, acceptor, limits, stop: stop.clone() };
        let accepting = tokio::spawn(accept(listener, Arc::new(port)));
        Ok(Self { address, stop, tls, accepting })
    }

    /// Where it listens; the port is a real one also when 0 was asked for.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Reads the certificate's files again, for connections from now on.
    ///
    /// # Errors
    /// [`ServerError::Tls`]; what was read before stays in use.
    pub async fn reload_tls(&self) -> Result<(), ServerError> {
        let Some((config, files)) = &self.tls else { return Ok(()) };
        config.reload_from_pem_file(&files.cert, &files.key).await.map_err(|source| {
            ServerError::Tls { cert: files.cert.clone(), key: files.key.clone(), source }
        })
    }

    /// Accepts nothing more, lets requests that are under way end, and closes what is left after
    /// `grace`. Whether all ended by themselves.
    pub async fn stop(mut self, grace: Duration) -> bool {
        self.stop.cancel();
        let Ok(mut connections) = (&mut self.accepting).await else { return false };
        let ended =
            timeout(grace, async { while connections.join_next().await.is_some() {} }).await;
        connections.shutdown().await;
        ended.is_ok()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// What every connection needs.
struct Port {
    front: Front,
    acceptor: Option<RustlsAcceptor>,
    limits: Limits,
    stop: CancellationToken,
}

async fn accept(listener: TcpListener, port: Arc<Port>) -> JoinSet<()> {
    let free = Arc::new(Semaphore::new(port.limits.connections));
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            () = port.stop.cancelled() => return connections,
            Some(_) = connections.join_next() => {}
            Some((permit, stream, peer)) = next(&listener, &free) => {
                let port = Arc::clone(&port);
                connections.spawn(async move {
                    connect(&port, stream, peer).await;
                    drop(permit);
                });
            }
        }
    }
}

/// The next caller, once there is room for one.
async fn next(
    listener: &TcpListener,
    free: &Arc<Semaphore>,
) -> Option<(OwnedSemaphorePermit, TcpStream, SocketAddr)> {
    let permit = Arc::clone(free).acquire_owned().await.ok()?;
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => return Some((permit, stream, peer)),
            Err(error) if is_the_callers(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// The caller went away before it was accepted.
fn is_the_callers(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

async fn connect(port: &Port, stream: TcpStream, peer: SocketAddr) {
    // Replies are small and wanted now.
    let _ = stream.set_nodelay(true);
    match &port.acceptor {
        None => serve(port, stream, peer).await,
        // In a box, so that connections without TLS need no room for it.
        Some(acceptor) => {
            Box::pin(async {
                match acceptor.accept(stream, ()).await {
                    Ok((stream, _)) => serve(port, stream, peer).await,
                    Err(error) => tracing::debug!(%error, "a TLS handshake failed"),
                }
            })
            .await;
        }
    }
}

/// Counts what happens on a connection.
#[derive(Default)]
struct Activity {
    begun: AtomicUsize,
    ended: AtomicUsize,
}

/// One request under way.
struct Busy(Arc<Activity>);

impl Busy {
    fn begin(activity: &Arc<Activity>) -> Self {
        activity.begun.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(activity))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::Relaxed);
    }
}

/// A stream never ends by itself. What it sends counts as requests do, so that the connection is no
/// idle one for as long as the caller takes it: one that takes nothing any more is let go.
fn watched(response: Response, activity: &Arc<Activity>) -> Response {
    if response.extensions().get::<Stream>().is_none() {
        return response;
    }
    let activity = Arc::clone(activity);
    response.map(|body| {
        Body::new(body.map_frame(move |frame| {
            drop(Busy::begin(&activity));
            frame
        }))
    })
}

async fn serve<S>(port: &Port, stream: S, peer: SocketAddr)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let activity = Arc::new(Activity::default());
    let (front, counted) = (port.front.clone(), Arc::clone(&activity));
    let service = service_fn(move |request: http::Request<Incoming>| {
        let (front, busy) = (front.clone(), Busy::begin(&counted));
        let activity = Arc::clone(&counted);
        async move {
            let response = front.handle(peer, request.map(Body::new)).await;
            drop(busy);
            Ok::<_, Infallible>(watched(response, &activity))
        }
    });
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(port.limits.idle)
        .max_buf_size(HEAD_BYTES);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(u32::try_from(HEAD_BYTES).unwrap_or(u32::MAX))
        .keep_alive_interval(port.limits.idle)
        .keep_alive_timeout(port.limits.idle);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let mut ticks = interval(port.limits.idle);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.reset();
    let mut stopping = false;
    let mut idle = 0;
    let mut begun_before = usize::MAX;
    loop {
        tokio::select! {
            biased;
            // A connection that breaks off is the caller's business.
            _ = connection.as_mut() => return,
            () = port.stop.cancelled(), if !stopping => {
                stopping = true;
                connection.as_mut().graceful_shutdown();
            }
            _ = ticks.tick() => {
                // hyper's own timeouts begin with the first byte of a request and end with its
                // head: whoever sends none, or reads no reply, is found here.
                let begun = activity.begun.load(Ordering::Relaxed);
                let busy = begun != activity.ended.load(Ordering::Relaxed);
                let quiet = !busy && (begun == begun_before || begun == 0);
                begun_before = begun;
                idle = if quiet { idle + 1 } else { 0 };
                match idle {
                    0 => {}
                    1 => connection.as_mut().graceful_shutdown(),
                    _ => return,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_files_is_read() {
        let text = "Limit   Soft Limit  Hard Limit  Units\nMax processes  1 2 p\n\
                    Max open files            1024                 524288               files\n";
        assert_eq!(open_files(text), Some(1_024));
        assert_eq!(open_files("Max open files unlimited unlimited files"), Some(usize::MAX));
        assert_eq!(open_files("nothing"), None);
        assert!((64..=16_384).contains(&Limits::default().connections));
    }
}
