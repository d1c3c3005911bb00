//! TLS: rustls on ring, trusting what the system trusts.

use rustls::crypto::{CryptoProvider, ring};
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::Verifier;
use std::sync::{Arc, OnceLock};

/// Makes ring the process's provider of cryptography, unless one was chosen before. Any TLS of the
/// process may be configured afterwards; calling it again changes nothing.
pub fn install_crypto_provider() {
    // An error only says that a provider is there already.
    let _ = ring::default_provider().install_default();
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// The configuration of every TLS client of the process. The system's roots are read once, at the
/// first `https` target (on Linux: the usual bundle, or `SSL_CERT_FILE` and `SSL_CERT_DIR`).
///
/// # Errors
/// The system has no roots.
pub(crate) fn trusting_the_system() -> Result<ClientConfig, rustls::Error> {
    static CONFIG: OnceLock<ClientConfig> = OnceLock::new();
    if let Some(config) = CONFIG.get() {
        return Ok(config.clone());
    }
    let verifier = Verifier::new(provider())?;
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(CONFIG.get_or_init(|| config).clone())
}

/// The configuration of clients that only ever speak plain HTTP: they must work where the system
/// has no roots.
///
/// # Errors
/// None that ring would cause.
pub(crate) fn trusting_nobody() -> Result<ClientConfig, rustls::Error> {
    Ok(ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth())
}
