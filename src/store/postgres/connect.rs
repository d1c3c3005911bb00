//! Connections that are lent, and transactions that are sent in as few round trips as can be.

use super::fail::{Done, Fail};
use super::pool::{Connection, Connections, Pool, PoolError};
use deadpool::managed::Object;
use futures::future::BoxFuture;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

/// How long a transaction waits for what others hold. A daemon that fell silent in the midst of one
/// holds its rows until the server ends that: whoever needs them must not keep others waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    /// Not long, and once: there is more to do that needs none of it.
    Little,
    /// Some seconds.
    Much,
}

impl Patience {
    /// What opens a transaction; the server ends a statement that takes longer. Sessions of our own
    /// have the limits of much patience anyway.
    fn begin(self, direct: bool) -> &'static str {
        match (self, direct) {
            (Self::Much, true) => "BEGIN",
            (Self::Little, true) => "BEGIN; SET LOCAL lock_timeout = '500ms'",
            (Self::Little, false) => {
                "BEGIN ISOLATION LEVEL READ COMMITTED; \
                 SET LOCAL statement_timeout = '10s'; SET LOCAL lock_timeout = '500ms'; \
                 SET LOCAL idle_in_transaction_session_timeout = '15s'"
            }
            (Self::Much, false) => {
                "BEGIN ISOLATION LEVEL READ COMMITTED; \
                 SET LOCAL statement_timeout = '10s'; SET LOCAL lock_timeout = '2s'; \
                 SET LOCAL idle_in_transaction_session_timeout = '15s'"
            }
        }
    }

    /// How often work is tried that waits in vain for what others hold.
    fn tries(self) -> u32 {
        match self {
            Self::Little => 1,
            Self::Much => 4,
        }
    }
}

/// A transaction, or a read, that takes longer is given up, with its connection: the way to the
/// server may be dead without a sign.
const LONGEST: Duration = Duration::from_secs(20);

/// How often work that lost against other transactions is done anew.
const TRIES: u32 = 8;

/// A value and its type.
pub(super) type Param<'p> = (&'p (dyn ToSql + Sync), Type);

/// A connection out of the pool. Only one that was used to the end goes back there.
pub(super) struct Lent {
    object: Option<Object<Connections>>,
    patience: Patience,
    /// Statements that are to be prepared.
    wanted: Mutex<Vec<(String, Vec<Type>)>>,
}

impl Lent {
    fn connection(&self) -> Done<&Connection> {
        // `None` only once it is dropped.
        let object =
            self.object.as_ref().ok_or_else(|| Fail::Connect("it is closed".to_owned()))?;
        Ok(object)
    }

    /// Runs a statement that will come again and again, and is best prepared for that. So it must be
    /// nothing but look-ups, whatever plan is made of it: `= ANY(…)`, `LATERAL`, no join that could be
    /// done by reading a table. The first time it is not prepared: it travels with what is sent before
    /// and after it.
    pub(super) async fn query(&self, sql: &str, params: &[Param<'_>]) -> Done<Vec<Row>> {
        let connection = self.connection()?;
        if let Some(statement) = connection.prepared(sql) {
            let values: Vec<&(dyn ToSql + Sync)> = params.iter().map(|(value, _)| *value).collect();
            return Ok(connection.client.query(statement, &values).await?);
        }
        if connection.direct {
            let types = params.iter().map(|(_, kind)| kind.clone()).collect();
            let mut wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
            wanted.push((sql.to_owned(), types));
        }
        Ok(connection.client.query_typed(sql, params).await?)
    }

    /// Runs a statement that comes seldom, or was put together for this one time: it is planned for
    /// what there is at that moment.
    pub(super) async fn query_once(&self, sql: &str, params: &[Param<'_>]) -> Done<Vec<Row>> {
        Ok(self.connection()?.client.query_typed(sql, params).await?)
    }

    /// Runs statements without parameters.
    async fn simple(&self, sql: &str) -> Done<()> {
        Ok(self.connection()?.client.batch_execute(sql).await?)
    }

    /// Opens a transaction. Send it together with the first statements (`try_join!`): all that is
    /// polled in one go travels in one round trip, in that order.
    pub(super) async fn begin(&self) -> Done<()> {
        self.simple(self.patience.begin(self.connection()?.direct)).await
    }

    /// Ends the transaction. Its success means something only together with that of every statement
    /// before it.
    pub(super) async fn commit(&self) -> Done<()> {
        self.simple("COMMIT").await
    }

    /// Gives the connection back for others.
    fn give_back(mut self) {
        let wanted = std::mem::take(self.wanted.get_mut().unwrap_or_else(PoisonError::into_inner));
        let Some(mut object) = self.object.take() else { return };
        if wanted.is_empty() {
            return;
        }
        tokio::spawn(async move {
            let prepared = tokio::time::timeout(LONGEST, object.prepare(wanted)).await;
            if !matches!(prepared, Ok(Ok(()))) {
                drop(Object::take(object));
            }
        });
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // In the midst of something: nobody else may have it.
        if let Some(object) = self.object.take() {
            drop(Object::take(object));
        }
    }
}

/// The way to the database. Cheap to clone.
#[derive(Clone)]
pub(super) struct Link {
    pool: Pool,
}

impl Link {
    pub(super) fn new(pool: Pool) -> Self {
        Self { pool }
    }

    async fn lend(&self, patience: Patience) -> Done<Lent> {
        match self.pool.get().await {
            Ok(object) => Ok(Lent { object: Some(object), patience, wanted: Mutex::default() }),
            Err(PoolError::Closed) => Err(Fail::Connect("the store is closed".to_owned())),
            Err(PoolError::Timeout(_)) => Err(Fail::Slow),
            Err(PoolError::Backend(error)) => Err(Fail::Connect(reason(&error))),
            Err(error) => Err(Fail::Connect(error.to_string())),
        }
    }

    /// Reads, or writes with one statement that may as well happen twice: each statement is a
    /// transaction of its own. A connection that turns out to be dead is replaced once.
    pub(super) async fn read<T, F>(&self, work: F) -> Done<T>
    where
        T: Send,
        F: for<'l> Fn(&'l Lent) -> BoxFuture<'l, Done<T>> + Send + Sync,
    {
        let mut fresh = false;
        loop {
            let lent = self.lend(Patience::Much).await?;
            let done = tokio::time::timeout(LONGEST, work(&lent)).await.unwrap_or(Err(Fail::Slow));
            match done {
                Ok(value) => {
                    lent.give_back();
                    return Ok(value);
                }
                Err(Fail::Sql(error)) if error.as_db_error().is_none() && !fresh => fresh = true,
                Err(fail) if fail.is_stale() && !fresh => fresh = true,
                Err(fail) => {
                    if matches!(&fail, Fail::Sql(error) if error.as_db_error().is_some())
                        || matches!(&fail, Fail::Corrupt(_))
                    {
                        lent.give_back();
                    }
                    return Err(fail);
                }
            }
        }
    }

    /// Carries out one transaction: `work` opens and commits it. What lost against others is done
    /// anew; whatever else fails is rolled back. A connection that breaks while the transaction is
    /// ended leaves open which it was.
    pub(super) async fn transaction<T, F>(&self, work: F) -> Done<T>
    where
        T: Send,
        F: for<'l> Fn(&'l Lent) -> BoxFuture<'l, Done<T>> + Send + Sync,
    {
        self.transaction_with(Patience::Much, work).await
    }

    /// The same, with so much patience for what others hold.
    pub(super) async fn transaction_with<T, F>(&self, patience: Patience, work: F) -> Done<T>
    where
        T: Send,
        F: for<'l> Fn(&'l Lent) -> BoxFuture<'l, Done<T>> + Send + Sync,
    {
        let mut tries = 0;
        loop {
            let lent = self.lend(patience).await?;
            let done = tokio::time::timeout(LONGEST, work(&lent)).await.unwrap_or(Err(Fail::Slow));
            let fail = match done {
                Ok(value) => {
                    lent.give_back();
                    return Ok(value);
                }
                Err(fail) => fail,
            };
            let rolled_back = match &fail {
                Fail::Sql(error) if error.as_db_error().is_none() => false,
                Fail::Connect(_) | Fail::Slow => false,
                _ if fail.is_stale() => false,
                _ => {
                    let rollback = tokio::time::timeout(LONGEST, lent.simple("ROLLBACK")).await;
                    matches!(rollback, Ok(Ok(())))
                }
            };
            if rolled_back {
                lent.give_back();
            }
            tries += 1;
            let most = if fail.is_held() { patience.tries() } else { TRIES };
            if !(fail.is_conflict() || fail.is_stale()) || tries >= most {
                return Err(fail);
            }
            tokio::time::sleep(pause(tries)).await;
        }
    }

    /// Lets no more work in.
    pub(super) fn close(&self) {
        self.pool.close();
    }
}

/// Those who lost against each other come again at different times.
fn pause(tries: u32) -> Duration {
    let most = 2_u64 << tries.min(7);
    Duration::from_millis(crate::clock::random() % most)
}

/// What keeps a connection from being made, without its password.
pub(in crate::store) fn reason(error: &tokio_postgres::Error) -> String {
    use std::error::Error as _;
    match (error.as_db_error(), error.source()) {
        (Some(db), _) => format!("{} ({})", db.message(), db.code().code()),
        (None, Some(source)) => source.to_string(),
        (None, None) => error.to_string(),
    }
}
