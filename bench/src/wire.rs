//! Just enough HTTP/1.1, over `httparse` and a socket. Generator and stubs share the cores with the
//! daemon that is measured, so whatever they spend is missing there; a full client and server would
//! cost several times as much as what follows.

use anyhow::{Context, Result, bail, ensure};
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const HEADERS: usize = 48;

/// The largest message that is read.
const LIMIT: usize = 4 << 20;

/// A request that has come in whole.
pub(crate) struct Request<'a> {
    headers: &'a [httparse::Header<'a>],
    /// The body.
    pub(crate) body: &'a [u8],
}

impl<'a> Request<'a> {
    /// A header's value.
    pub(crate) fn header(&self, name: &str) -> Option<&'a [u8]> {
        self.headers.iter().find(|h| h.name.eq_ignore_ascii_case(name)).map(|h| h.value)
    }
}

/// Gives the first request in `bytes` to `take` and says how many bytes it had; `None` when it is
/// not there as a whole.
pub(crate) fn take_request(bytes: &[u8], take: impl FnOnce(&Request<'_>)) -> Result<Option<usize>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut head = httparse::Request::new(&mut headers);
    let httparse::Status::Complete(start) = head.parse(bytes).context("no HTTP request")? else {
        return Ok(None);
    };
    let end = start + body_length(head.headers)?.unwrap_or(0);
    let Some(body) = bytes.get(start..end) else { return Ok(None) };
    take(&Request { headers: head.headers, body });
    Ok(Some(end))
}

/// The status of the response in `bytes` and where its body starts and ends.
fn response(bytes: &[u8]) -> Result<Option<(u16, usize, usize)>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut head = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(start) = head.parse(bytes).context("no HTTP response")? else {
        return Ok(None);
    };
    let status = head.code.unwrap_or(0);
    let length = match body_length(head.headers)? {
        Some(length) => length,
        None if status == 204 => 0,
        None => bail!("a response of status {status} without Content-Length"),
    };
    Ok((bytes.len() >= start + length).then_some((status, start, start + length)))
}

fn body_length(headers: &[httparse::Header<'_>]) -> Result<Option<usize>> {
    let header = |name: &str| headers.iter().find(|h| h.name.eq_ignore_ascii_case(name));
    ensure!(header("transfer-encoding").is_none(), "chunked bodies are not read here");
    let Some(length) = header("content-length") else { return Ok(None) };
    let length: usize = std::str::from_utf8(length.value)?.trim().parse()?;
    ensure!(length <= LIMIT, "a body of {length} bytes");
    Ok(Some(length))
}

/// Writes a response.
pub(crate) fn reply(out: &mut Vec<u8>, status: &str, content_type: &str, body: &[u8]) {
    let length = body.len();
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(status.as_bytes());
    out.extend_from_slice(b"\r\nContent-Type: ");
    out.extend_from_slice(content_type.as_bytes());
    out.extend_from_slice(b"\r\nContent-Length: ");
    out.extend_from_slice(length.to_string().as_bytes());
    out.extend_from_slice(b"\r\n\r\n");
    out.extend_from_slice(body);
}

/// A keep-alive connection to a server, one request at a time.
pub(crate) struct Client {
    stream: TcpStream,
    read: Vec<u8>,
}

/// What a server said.
pub(crate) struct Response<'a> {
    /// The status code.
    pub(crate) status: u16,
    /// The body.
    pub(crate) body: &'a [u8],
}

impl Client {
    /// Connects.
    pub(crate) async fn connect(address: SocketAddr) -> Result<Self> {
        let stream =
            TcpStream::connect(address).await.with_context(|| format!("cannot reach {address}"))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, read: Vec::with_capacity(4096) })
    }

    /// Sends a whole request and reads its response.
    pub(crate) async fn exchange(&mut self, request: &[u8]) -> Result<Response<'_>> {
        self.read.clear();
        self.stream.write_all(request).await?;
        loop {
            let read = self.stream.read_buf(&mut self.read).await?;
            ensure!(read > 0, "the connection was closed before the response was whole");
            if let Some((status, start, end)) = response(&self.read)? {
                ensure!(end == self.read.len(), "more bytes than one response");
                return Ok(Response { status, body: &self.read[start..end] });
            }
            ensure!(self.read.len() <= LIMIT, "a response without an end");
        }
    }
}

/// Asks once, over a connection of its own.
pub(crate) async fn get(address: SocketAddr, path: &str) -> Result<(u16, String)> {
    let mut client = Client::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n");
    let response = client.exchange(request.as_bytes()).await?;
    Ok((response.status, String::from_utf8_lossy(response.body).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: &[u8] =
        b"POST /p?q HTTP/1.1\r\nhost: x\r\nX-Amz-Target: T\r\ncontent-length: 3\r\n\r\nabcPOST";

    #[test]
    fn a_request_is_taken_once_it_is_whole() {
        let mut seen = String::new();
        let taken = take_request(REQUEST, |request| {
            let target = request.header("x-amz-target").unwrap();
            seen = format!("{target:?} {:?}", request.body);
        });
        assert_eq!(taken.unwrap(), Some(REQUEST.len() - 4));
        assert_eq!(seen, format!("{:?} {:?}", b"T", b"abc"));
        for cut in [10, REQUEST.len() - 6] {
            let taken = take_request(&REQUEST[..cut], |_| panic!("not whole"));
            assert_eq!(taken.unwrap(), None);
        }
    }

    #[test]
    fn what_is_no_http_or_chunked_is_refused() {
        assert!(take_request(b"\x16\x03\x01 tls\r\n\r\n", |_| ()).is_err());
        let chunked = b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n";
        assert!(take_request(chunked, |_| ()).is_err());
    }

    #[test]
    fn a_reply_is_read_back_as_the_response_it_is() {
        let mut bytes = Vec::new();
        reply(&mut bytes, "202 Accepted", "application/json", b"{}");
        let (status, start, end) = response(&bytes).unwrap().unwrap();
        assert_eq!((status, &bytes[start..end]), (202, &b"{}"[..]));
        assert_eq!(response(&bytes[..bytes.len() - 1]).unwrap(), None);
        assert_eq!(response(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap(), Some((204, 27, 27)));
    }
}
