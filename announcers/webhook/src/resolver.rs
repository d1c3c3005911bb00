//! Names to addresses, of which only those are connected to that the guard lets through.

use crate::guard::{AddressGuard, AddressRefused};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::lookup_host;
use tokio::sync::Semaphore;

/// Lookups of one client under way at once. The system's resolver blocks a thread for each and
/// cannot be stopped, so that a dead DNS server must not get all threads of the process.
const LOOKUPS: usize = 8;

/// The system's resolver behind an [`AddressGuard`]. The client connects to nothing but what this
/// returns, so that a name cannot change between the check and the connection.
#[derive(Clone)]
pub(crate) struct GuardedResolver {
    guard: AddressGuard,
    lookups: Arc<Semaphore>,
}

/// Why a name gave no address to connect to.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ResolveError {
    /// The resolver's answer.
    #[error("the name cannot be resolved: {0}")]
    Lookup(#[from] io::Error),
    /// It resolves, but to nothing that may be reached.
    #[error("the name resolves to nothing that may be reached: {0}")]
    Refused(AddressRefused),
    /// The daemon is stopping.
    #[error("the lookup was broken off")]
    Stopping,
}

impl GuardedResolver {
    pub(crate) fn new(guard: AddressGuard) -> Self {
        Self { guard, lookups: Arc::new(Semaphore::new(LOOKUPS)) }
    }

    /// The addresses of a host that may be connected to.
    pub(crate) async fn addresses(
        &self,
        host: String,
        port: u16,
    ) -> Result<Vec<SocketAddr>, ResolveError> {
        let lookups = Arc::clone(&self.lookups);
        let permit = lookups.acquire_owned().await.map_err(|_| ResolveError::Stopping)?;
        // Its own task, so that the permit stays taken as long as the thread, also when the attempt
        // has given up waiting.
        let lookup = tokio::spawn(async move {
            let found = lookup_host((host, port)).await.map(Iterator::collect);
            drop(permit);
            found
        });
        let found: Vec<SocketAddr> = lookup.await.map_err(|_| ResolveError::Stopping)??;
        choose(&self.guard, found)
    }
}

/// Keeps what may be reached; an error when there was something and nothing is left.
fn choose(guard: &AddressGuard, found: Vec<SocketAddr>) -> Result<Vec<SocketAddr>, ResolveError> {
    let mut refused = None;
    let mut allowed = Vec::with_capacity(found.len());
    for address in found {
        match guard.check(address.ip()) {
            Ok(()) => allowed.push(address),
            Err(refusal) => refused = Some(refusal),
        }
    }
    match refused {
        Some(refusal) if allowed.is_empty() => Err(ResolveError::Refused(refusal)),
        _ => Ok(allowed),
    }
}

impl Resolve for GuardedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let resolver = self.clone();
        Box::pin(async move {
            // Port 0: the client puts the URL's own there.
            let allowed = resolver.addresses(name.as_str().to_owned(), 0).await?;
            let addresses: Addrs = Box::new(allowed.into_iter());
            Ok(addresses)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(texts: &[&str]) -> Vec<SocketAddr> {
        texts.iter().map(|t| t.parse().unwrap()).collect()
    }

    #[test]
    fn of_mixed_addresses_only_the_public_ones_are_used() {
        let found = addresses(&["10.0.0.1:0", "1.1.1.1:0", "[::1]:0", "[2606:4700::1]:0"]);
        let chosen = choose(&AddressGuard::default(), found).unwrap();
        assert_eq!(chosen, addresses(&["1.1.1.1:0", "[2606:4700::1]:0"]));
    }

    #[test]
    fn a_name_with_private_addresses_only_is_refused() {
        let found = addresses(&["10.0.0.1:0", "[::ffff:169.254.169.254]:0"]);
        let refused = choose(&AddressGuard::default(), found).unwrap_err();
        assert!(refused.to_string().contains("cloud metadata service"), "{refused}");
        assert!(refused.to_string().contains("allow_private"), "{refused}");
    }

    #[tokio::test]
    async fn localhost_resolves_to_loopback_and_is_refused_unless_allowed() {
        let refused = GuardedResolver::new(AddressGuard::default());
        let refused = refused.addresses("localhost".to_owned(), 80).await.unwrap_err();
        assert!(matches!(refused, ResolveError::Refused(_)), "{refused}");
        let guard = AddressGuard::allowing(&["127.0.0.0/8", "::1"]).unwrap();
        let found = GuardedResolver::new(guard).addresses("localhost".to_owned(), 80).await;
        assert!(found.unwrap().iter().all(|a| a.ip().is_loopback() && a.port() == 80));
    }
}
