//! The connections that a daemon keeps, and what it leaves in their sessions.
//!
//! On the straight way to a server a statement that comes again and again is prepared, and limits are
//! set once a connection: else parsing and planning would be most of the work. Behind a proxy that
//! gives each transaction another connection (pgbouncer's `pool_mode = transaction`) nothing is left in
//! a session: what one daemon prepared by a name could be run by another that means something else.
//! Which of the two it is shows in the number of the server's process, see [`is_direct`].

use super::open::CONNECT;
use super::url::Target;
use deadpool::Runtime;
use deadpool::managed::{self, Metrics, QueueMode, RecycleError, RecycleResult};
use std::collections::HashMap;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error, SimpleQueryMessage, Statement};

/// How many connections a daemon has at most.
const CONNECTIONS: usize = 16;
/// How long work waits for one that is free.
const WAIT: Duration = Duration::from_secs(10);
/// How many statements a connection keeps: more than the store has that are worth it.
const MOST_PREPARED: usize = 100;

/// Plans are made anew when they are as old as the session was when they were made: a plan for all
/// values is kept for good otherwise, also one that was made when there was next to nothing and reading
/// all that is queued looked cheap. Never sooner than this,
const PLANS_LEAST: Duration = Duration::from_millis(100);
/// and at least so often.
const PLANS_MOST: Duration = Duration::from_secs(5);

/// What a session of our own is given. Plans are kept, also those that were made when the tables were
/// empty and reading all of one looked cheap: so that is never done.
const SESSION: &str = "SET default_transaction_isolation = 'read committed'; \
    SET statement_timeout = '10s'; SET lock_timeout = '2s'; \
    SET idle_in_transaction_session_timeout = '15s'; SET enable_seqscan = off";

/// A connection, and the statements that are prepared on it.
pub(super) struct Connection {
    pub(super) client: Client,
    /// Its session is ours alone.
    pub(super) direct: bool,
    prepared: HashMap<String, Statement>,
    since: Instant,
    planned: Instant,
}

impl Connection {
    /// Lets the server plan anew what it planned for too long a time ago.
    async fn refresh_plans(&mut self) -> Result<(), Error> {
        let young = (self.planned - self.since).clamp(PLANS_LEAST, PLANS_MOST);
        if self.prepared.is_empty() || self.planned.elapsed() < young {
            return Ok(());
        }
        self.client.batch_execute("DISCARD PLANS").await?;
        self.planned = Instant::now();
        Ok(())
    }

    /// The statement, if it is prepared.
    pub(super) fn prepared(&self, sql: &str) -> Option<&Statement> {
        self.prepared.get(sql)
    }

    /// Prepares statements for those who come later.
    pub(super) async fn prepare(&mut self, wanted: Vec<(String, Vec<Type>)>) -> Result<(), Error> {
        for (sql, types) in wanted {
            if self.prepared.len() < MOST_PREPARED && !self.prepared.contains_key(&sql) {
                let statement = self.client.prepare_typed(&sql, &types).await?;
                self.prepared.insert(sql, statement);
            }
        }
        Ok(())
    }
}

pub(super) type Pool = managed::Pool<Connections>;
pub(super) type PoolError = managed::PoolError<Error>;

/// Makes connections.
pub(super) struct Connections {
    target: Target,
    /// No proxy was met yet. One is enough, since it could have the sessions of all daemons.
    direct: AtomicBool,
}

impl std::fmt::Debug for Connections {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connections").finish_non_exhaustive()
    }
}

/// A pool of connections, none made yet.
pub(super) fn new(target: Target) -> Result<Pool, String> {
    Pool::builder(Connections { target, direct: AtomicBool::new(true) })
        .max_size(CONNECTIONS)
        .queue_mode(QueueMode::Lifo)
        .wait_timeout(Some(WAIT))
        .create_timeout(Some(CONNECT))
        .recycle_timeout(Some(WAIT))
        .runtime(Runtime::Tokio1)
        .build()
        .map_err(|error| error.to_string())
}

impl managed::Manager for Connections {
    type Type = Connection;
    type Error = Error;

    async fn create(&self) -> Result<Connection, Error> {
        // Large, and seldom needed by those who wait for it.
        let (client, connection) = Box::pin(self.target.connect()).await?;
        // Ends with the client; whoever uses that is told of what goes wrong.
        tokio::spawn(async move { drop(connection.await) });
        let direct = self.direct.load(Ordering::Relaxed) && is_direct(&client).await?;
        if direct {
            client.batch_execute(SESSION).await?;
        } else if self.direct.swap(false, Ordering::Relaxed) {
            tracing::info!(
                "a proxy stands before PostgreSQL: statements are planned anew each time; a direct \
                 connection in the store's url takes less of both machines"
            );
        }
        let now = Instant::now();
        Ok(Connection { client, direct, prepared: HashMap::new(), since: now, planned: now })
    }

    async fn recycle(&self, connection: &mut Connection, _: &Metrics) -> RecycleResult<Error> {
        if connection.client.is_closed() {
            return Err(RecycleError::message("the connection was lost"));
        }
        connection.refresh_plans().await?;
        Ok(())
    }
}

/// Whether whoever answers is the server itself. Its greeting names the process that serves the
/// session, as does `pg_backend_pid()`; a proxy greets with a number of its own, since requests to
/// cancel have to reach the proxy.
async fn is_direct(client: &Client) -> Result<bool, Error> {
    let answer = client.simple_query("SELECT pg_backend_pid()").await?;
    let serving = answer.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0)?.parse::<i32>().ok(),
        _ => None,
    });
    Ok(serving.is_some() && serving == greeted_with(client).await)
}

/// The number that the greeting named. The library tells it to nobody but who receives a request to
/// cancel: so one is written, and goes nowhere.
async fn greeted_with(client: &Client) -> Option<i32> {
    let mut written = Vec::new();
    client.cancel_token().cancel_query_raw(Nowhere(&mut written), Plain).await.ok()?;
    // Length, code, process and secret, each of four bytes; a request for TLS may come before it.
    let process = written.get(written.len().checked_sub(8)?..)?.first_chunk()?;
    Some(i32::from_be_bytes(*process))
}

/// Keeps what is written, and says yes to a request for TLS.
struct Nowhere<'w>(&'w mut Vec<u8>);

impl AsyncRead for Nowhere<'_> {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        buffer.put_slice(b"S");
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Nowhere<'_> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.0.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl TlsStream for Nowhere<'_> {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

/// TLS that is none.
struct Plain;

impl<'w> TlsConnect<Nowhere<'w>> for Plain {
    type Stream = Nowhere<'w>;
    type Error = Infallible;
    type Future = Ready<Result<Nowhere<'w>, Infallible>>;

    fn connect(self, stream: Nowhere<'w>) -> Self::Future {
        ready(Ok(stream))
    }
}

#[cfg(test)]
mod tests;
