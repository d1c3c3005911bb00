//! Reading beside the writer: a few connections each for lanes and for everybody else, so that a
//! long list holds no lane up.

use super::fail::{Done, Fail};
use super::writer::Command;
use crate::store::{StoreError, StoreResult};
use rusqlite::Connection;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{Semaphore, mpsc, oneshot};

/// How many connections each of the two groups has.
const CONNECTIONS: u32 = 2;

/// A group of readers.
pub(super) enum Readers {
    /// Connections of their own.
    Pool(Arc<Pool>),
    /// A store in memory has one connection only.
    ThroughWriter,
}

pub(super) struct Pool {
    path: PathBuf,
    permits: Arc<Semaphore>,
    idle: Mutex<Vec<Connection>>,
}

impl Pool {
    pub(super) fn new(path: PathBuf) -> Arc<Self> {
        let permits = Arc::new(Semaphore::new(CONNECTIONS as usize));
        Arc::new(Self { path, permits, idle: Mutex::default() })
    }

    fn take(&self) -> Done<Connection> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        match idle {
            Some(conn) => Ok(conn),
            None => Ok(super::open::reader(&self.path)?),
        }
    }

    fn put_back(&self, conn: Connection) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(conn);
    }
}

impl Readers {
    /// Reads on a blocking thread.
    pub(super) async fn read<T, F>(&self, writer: mpsc::Sender<Command>, work: F) -> StoreResult<T>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Done<T> + Send + 'static,
    {
        let (reply, result) = oneshot::channel();
        match self {
            Self::ThroughWriter => {
                let look = Box::new(move |conn: &Connection| {
                    let _ = reply.send(work(conn).map_err(|fail| fail.told()));
                });
                writer.send(Command::Look(look)).await.map_err(|_| closed())?;
            }
            Self::Pool(pool) => {
                let permit = pool.permits.clone().acquire_owned().await.map_err(|_| closed())?;
                let pool = pool.clone();
                tokio::task::spawn_blocking(move || {
                    let done = pool.take().and_then(|conn| {
                        let done = work(&conn);
                        // After an error of the file a fresh connection has better chances.
                        if !matches!(&done, Err(fail) if fail.spoils_connection()) {
                            pool.put_back(conn);
                        }
                        done
                    });
                    drop(permit);
                    let _ = reply.send(done.map_err(|fail| fail.told()));
                });
            }
        }
        result.await.unwrap_or_else(|_| Err(Fail::Panicked.told()))
    }

    /// Lets no more reads in and waits for those under way.
    pub(super) async fn close(&self) {
        if let Self::Pool(pool) = self {
            // An error means that they were closed before.
            let all = pool.permits.acquire_many(CONNECTIONS).await;
            pool.permits.close();
            drop(all);
            pool.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
    }
}

/// What is said after [`crate::store::Store::close`].
pub(super) fn closed() -> StoreError {
    StoreError::Unavailable("the store is closed".to_owned())
}
