//! TLS to the server: rustls on ring, as everywhere.

use super::open::OpenError;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, InvalidDnsNameError, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};
use rustls_platform_verifier::Verifier;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio_postgres::Socket;
use tokio_postgres::config::SslNegotiation;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres_rustls::MakeRustlsConnect;

/// How the server is checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Check {
    /// It may be anybody: what is sent is hidden only from those who merely listen.
    Nothing,
    /// By its certificate.
    Certificate {
        /// A file with the certificates that are trusted; else what the system trusts.
        roots: Option<PathBuf>,
        /// Whether the certificate must be for the host.
        names: bool,
    },
}

/// Makes connections encrypted. Cheap to clone.
#[derive(Clone)]
pub(super) struct Tls(MakeRustlsConnect);

impl Tls {
    pub(super) fn new(check: &Check, negotiation: SslNegotiation) -> Result<Self, OpenError> {
        let verifier: Arc<dyn ServerCertVerifier> = match check {
            Check::Nothing => Arc::new(Lenient { chain: None, provider: provider() }),
            Check::Certificate { roots, names: true } => chain(roots.as_deref())?,
            Check::Certificate { roots, names: false } => {
                Arc::new(Lenient { chain: Some(chain(roots.as_deref())?), provider: provider() })
            }
        };
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| OpenError::Tls { what: error.to_string() })?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_no_client_auth();
        if negotiation == SslNegotiation::Direct {
            config.alpn_protocols = vec![b"postgresql".to_vec()];
        }
        Ok(Self(MakeRustlsConnect::new(config)))
    }
}

impl MakeTlsConnect<Socket> for Tls {
    type Stream = <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream;
    type TlsConnect = <MakeRustlsConnect as MakeTlsConnect<Socket>>::TlsConnect;
    type Error = InvalidDnsNameError;

    fn make_tls_connect(&mut self, host: &str) -> Result<Self::TlsConnect, Self::Error> {
        // A Unix socket has no name; what is made of this one is not used.
        let host = if host.is_empty() { "localhost" } else { host };
        MakeTlsConnect::<Socket>::make_tls_connect(&mut self.0, host)
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// What checks a certificate and the name it is for.
fn chain(roots: Option<&Path>) -> Result<Arc<dyn ServerCertVerifier>, OpenError> {
    let failed = |error: &dyn std::fmt::Display| OpenError::Tls { what: error.to_string() };
    let Some(path) = roots else {
        return Ok(Arc::new(Verifier::new(provider()).map_err(|error| failed(&error))?));
    };
    let refused = |what: String| OpenError::RootCert { path: path.to_owned(), what };
    let mut store = RootCertStore::empty();
    let found = CertificateDer::pem_file_iter(path).map_err(|error| refused(error.to_string()))?;
    for certificate in found {
        let certificate = certificate.map_err(|error| refused(error.to_string()))?;
        store.add(certificate).map_err(|error| refused(error.to_string()))?;
    }
    if store.is_empty() {
        return Err(refused("it holds no certificate".to_owned()));
    }
    let builder =
        rustls::client::WebPkiServerVerifier::builder_with_provider(Arc::new(store), provider());
    Ok(builder.build().map_err(|error| failed(&error))?)
}

/// Takes a certificate whatever name it is for, or, without a `chain`, any certificate. That the
/// server has its key is checked all the same.
#[derive(Debug)]
struct Lenient {
    chain: Option<Arc<dyn ServerCertVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Lenient {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(chain) = &self.chain else { return Ok(ServerCertVerified::assertion()) };
        let checked =
            chain.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match checked {
            // The name is looked at last, when all else is right.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            checked => checked,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
