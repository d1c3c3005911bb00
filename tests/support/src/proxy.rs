//! A network between two processes that can be bad in the ways networks are.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep_until};
use url::Url;

/// How the network is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// As if it were not there.
    Fine,
    /// Every byte arrives that much later, in each direction; as much as before gets through.
    Slow(Duration),
    /// Connections are taken and stay, and nothing gets through: a cable pulled.
    Silent,
    /// New connections are refused. Those that are there stay; see [`Proxy::cut`].
    Refusing,
}

/// Chunks under way in one direction; whoever sends more waits, as behind a full window.
const UNDER_WAY: usize = 64;

/// Passes on TCP connections to one address; those that pass it are cut with this.
#[derive(Debug)]
pub struct Proxy {
    addr: SocketAddr,
    state: Arc<State>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct State {
    network: watch::Sender<Network>,
    /// Changes when all connections are to end.
    cuts: watch::Sender<u64>,
    taken: AtomicU64,
}

impl Proxy {
    /// One before `target`, on a free loopback port.
    ///
    /// # Panics
    /// Where there is no free port.
    pub async fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        let addr = listener.local_addr().expect("a bound listener has an address");
        let state = Arc::new(State {
            network: watch::Sender::new(Network::Fine),
            cuts: watch::Sender::new(0),
            taken: AtomicU64::new(0),
        });
        let task = tokio::spawn(accept(listener, addr, target, Arc::clone(&state)));
        Self { addr, state, task }
    }

    /// Where to connect to.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// A URL of the target, led through this.
    ///
    /// # Panics
    /// When it is none.
    #[must_use]
    pub fn lead(&self, url: &str) -> String {
        let mut url = Url::parse(url).expect("a URL");
        url.set_host(Some("127.0.0.1")).expect("a URL with a host");
        url.set_port(Some(self.addr.port())).expect("a URL with a port");
        url.into()
    }

    /// From now on, for connections that are there as well.
    pub fn set(&self, network: Network) {
        self.state.network.send_replace(network);
    }

    /// Ends every connection that is there.
    pub fn cut(&self) {
        self.state.cuts.send_modify(|n| *n += 1);
    }

    /// How many connections it has taken so far.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.state.taken.load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, addr: SocketAddr, target: SocketAddr, state: Arc<State>) {
    let mut listener = Some(listener);
    let mut network = state.network.subscribe();
    let mut connections = JoinSet::new();
    loop {
        if *network.borrow_and_update() == Network::Refusing {
            listener = None;
        } else if listener.is_none() {
            listener = Some(listen(addr));
        }
        let accepted = async {
            match &listener {
                Some(listener) => listener.accept().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = network.changed() => if changed.is_err() { return },
            Ok((client, _)) = accepted => {
                state.taken.fetch_add(1, Ordering::Relaxed);
                let cuts = state.cuts.subscribe();
                connections.spawn(pass(client, target, state.network.subscribe(), cuts));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

fn listen(addr: SocketAddr) -> TcpListener {
    let socket = TcpSocket::new_v4().expect("a socket");
    // Connections of before may still be ending on this port.
    socket.set_reuseaddr(true).expect("the option");
    socket.bind(addr).expect("the port is still ours");
    socket.listen(1_024).expect("a listener")
}

async fn pass(
    client: TcpStream,
    target: SocketAddr,
    network: watch::Receiver<Network>,
    mut cuts: watch::Receiver<u64>,
) {
    let passing = async {
        let Ok(server) = TcpStream::connect(target).await else { return };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        tokio::join!(
            pump(from_client, to_server, network.clone()),
            pump(from_server, to_client, network)
        );
    };
    tokio::select! {
        () = passing => {}
        _ = cuts.changed() => {}
    }
}

/// One direction, until its sender closes it.
async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut network: watch::Receiver<Network>,
) {
    let (sender, mut under_way) = mpsc::channel::<(Instant, Vec<u8>)>(UNDER_WAY);
    let now = network.clone();
    let reading = async move {
        let mut buffer = vec![0; 16 * 1_024];
        while let Ok(read @ 1..) = from.read(&mut buffer).await {
            let late = match *now.borrow() {
                Network::Slow(late) => late,
                _ => Duration::ZERO,
            };
            let chunk = (Instant::now() + late, buffer[..read].to_vec());
            if sender.send(chunk).await.is_err() {
                return;
            }
        }
    };
    let writing = async move {
        while let Some((due, chunk)) = under_way.recv().await {
            sleep_until(due).await;
            audible(&mut network).await;
            if to.write_all(&chunk).await.is_err() {
                return;
            }
        }
        audible(&mut network).await;
        let _ = to.shutdown().await;
    };
    tokio::join!(reading, writing);
}

async fn audible(network: &mut watch::Receiver<Network>) {
    // The sender lives as long as the connections, so that this cannot end in an error.
    let _ = network.wait_for(|n| *n != Network::Silent).await;
}
