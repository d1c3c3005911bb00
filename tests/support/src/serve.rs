//! A bare HTTP/1.1 server on a free loopback port, as little between the socket and the test as can be.

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::future::Future;
use std::net::SocketAddr;
use tokio::net::{TcpListener, TcpSocket};
use tokio::task::{JoinHandle, JoinSet};

/// A request, read to its end.
pub(crate) struct Incomer {
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// Closes the connection instead of answering.
#[derive(Debug)]
pub(crate) struct Cut;

impl std::fmt::Display for Cut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("cut on purpose")
    }
}

impl std::error::Error for Cut {}

pub(crate) type Served = Result<Response<Full<Bytes>>, Cut>;

/// A running server; dropping it closes the listener and every connection.
pub(crate) struct Server {
    pub(crate) addr: SocketAddr,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Serves on `addr`, whose port may be 0.
pub(crate) async fn serve<F, R>(addr: SocketAddr, handler: F) -> Server
where
    F: Fn(Incomer) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Served> + Send + 'static,
{
    let listener = listen(addr);
    let addr = listener.local_addr().expect("a bound listener has an address");
    let task = tokio::spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = listener.accept() => {
                    let Ok((stream, _)) = accepted else { continue };
                    let _ = stream.set_nodelay(true);
                    let handler = handler.clone();
                    connections.spawn(async move {
                        let service = service_fn(move |request| answer(request, handler.clone()));
                        let mut http = hyper::server::conn::http1::Builder::new();
                        http.timer(TokioTimer::new());
                        let _ = http.serve_connection(TokioIo::new(stream), service).await;
                    });
                }
                Some(_) = connections.join_next() => {}
            }
        }
    });
    Server { addr, task }
}

/// With a long backlog: load generators connect all at once.
fn listen(addr: SocketAddr) -> TcpListener {
    let socket = if addr.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
    let socket = socket.expect("a socket can be made");
    let _ = socket.set_reuseaddr(true);
    socket.bind(addr).unwrap_or_else(|e| panic!("cannot bind {addr}: {e}"));
    socket.listen(1024).expect("a bound socket listens")
}

async fn answer<F, R>(request: Request<Incoming>, handler: F) -> Served
where
    F: Fn(Incomer) -> R,
    R: Future<Output = Served>,
{
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map_err(|_| Cut)?.to_bytes();
    handler(Incomer { method: parts.method, uri: parts.uri, headers: parts.headers, body }).await
}

/// Any free loopback port.
pub(crate) fn anywhere() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}
