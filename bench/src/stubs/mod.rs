//! Receivers for what the daemon announces: as cheap as they can be, since they run on the cores
//! that are measured, but each speaks its service's protocol and notes every wait.

mod dynamodb;
mod server;
mod sns;
mod sqs;
#[cfg(test)]
mod tests;
mod webhook;

use crate::ledger::{Destination, Ledger};
use crate::wire::{Request, reply};
use anyhow::{Context, Result};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use tokio::sync::oneshot;

/// What answers requests on one port.
#[derive(Clone)]
pub(crate) enum Receiver {
    /// AWS SQS.
    Sqs(Arc<Destination>),
    /// AWS SNS.
    Sns(Arc<Destination>),
    /// AWS DynamoDB.
    DynamoDb(Arc<Destination>),
    /// A webhook's receiver.
    Webhook(Arc<Destination>),
    /// Takes connections and says nothing.
    Silent,
    /// Says 202 to everything: what tests the generator.
    #[cfg(test)]
    Accepting,
    /// Says 503 to everything.
    #[cfg(test)]
    Refusing,
}

/// One connection's share of a receiver: what it needs anew for each.
trait Answer {
    /// Notes what a request brings, at a time in microseconds, and writes the response.
    fn answer(&mut self, request: &Request<'_>, at: u32, out: &mut Vec<u8>);
}

impl Receiver {
    /// `None`: there is no answer.
    fn answering(&self) -> Option<Box<dyn Answer + Send>> {
        match self {
            Self::Sqs(destination) => Some(Box::new(sqs::Sqs(Arc::clone(destination)))),
            Self::Sns(destination) => Some(Box::new(sns::Sns(Arc::clone(destination)))),
            Self::DynamoDb(destination) => {
                Some(Box::new(dynamodb::DynamoDb(Arc::clone(destination))))
            }
            Self::Webhook(destination) => {
                Some(Box::new(webhook::Webhook::new(Arc::clone(destination))))
            }
            Self::Silent => None,
            #[cfg(test)]
            Self::Accepting => Some(Box::new(Always("202 Accepted"))),
            #[cfg(test)]
            Self::Refusing => Some(Box::new(Always("503 Service Unavailable"))),
        }
    }
}

#[cfg(test)]
struct Always(&'static str);

#[cfg(test)]
impl Answer for Always {
    fn answer(&mut self, _request: &Request<'_>, _at: u32, out: &mut Vec<u8>) {
        reply(out, self.0, "application/json", b"{}");
    }
}

/// Running receivers, on a thread of their own. Dropping them ends them.
pub(crate) struct Receivers {
    addresses: Vec<SocketAddr>,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Receivers {
    /// Starts each on a free loopback port.
    pub(crate) fn start(receivers: Vec<Receiver>, ledger: &Ledger) -> Result<Self> {
        let clock = ledger.clock;
        let mut addresses = Vec::new();
        let mut listeners = Vec::new();
        for receiver in receivers {
            let listener = TcpListener::bind("127.0.0.1:0").context("no port for a receiver")?;
            listener.set_nonblocking(true)?;
            addresses.push(listener.local_addr()?);
            listeners.push((listener, receiver));
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("no runtime for the receivers")?;
        let (end, ended) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            runtime.block_on(async move {
                for (listener, receiver) in listeners {
                    tokio::spawn(server::serve(listener, receiver, clock));
                }
                // Either way the receivers are no longer wanted.
                let _ = ended.await;
            });
        });
        Ok(Self { addresses, end: Some(end), thread: Some(thread) })
    }

    /// Where they listen, in the order they were given.
    pub(crate) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }
}

impl Drop for Receivers {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A JSON reply of the AWS protocols.
fn reply_json(out: &mut Vec<u8>, body: &[u8]) {
    reply(out, "200 OK", "application/x-amz-json-1.0", body);
}
