//! The flags for QUIC, certificates, and answers that survive a lost connection.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use clap::Args;
use loquent_server::{CertificateSource, MUTE_LIMIT, QuicConfig, ResumableLimits, StreamBounds};

use super::acme::AcmeArgs;
use super::http::HttpArgs;
use crate::serve::acme::AcmeKeeper;
use crate::serve::banner::outward;
use crate::serve::kept_certificate;
use crate::trust::Fingerprint;

/// Minimum `--stream-log-bytes`: large enough for a merged flush with its log-probabilities.
const LOG_BYTES_MIN: usize = 64 * 1024;

/// QUIC, its certificates, and what is kept for a resume.
#[derive(Debug, Args)]
#[command(next_help_heading = "QUIC and resume")]
pub(super) struct QuicArgs {
    /// Require QUIC: exit at start if its UDP port cannot be used [default: warn and use TCP]
    #[arg(long, env = "LOQUENT_QUIC", overrides_with = "no_quic")]
    quic: bool,
    /// Disable QUIC, so that answers travel over TCP only
    #[arg(long, env = "LOQUENT_NO_QUIC", overrides_with = "quic")]
    no_quic: bool,
    /// UDP port of QUIC; 0 picks a free one [default: the number of the TCP port]
    #[arg(long, env = "LOQUENT_QUIC_PORT", value_name = "PORT")]
    quic_port: Option<u16>,
    /// Certificate chain in PEM for HTTPS and QUIC [default: plain HTTP, and self-signed
    /// certificates for QUIC]
    ///
    /// The server's own certificate comes first. Self-signed certificates are renewed while the
    /// server runs.
    #[arg(long, env = "LOQUENT_TLS_CERT", value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Private key of --tls-cert in PEM
    #[arg(long, env = "LOQUENT_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Serve HTTPS with a certificate that is made once and kept
    ///
    /// Its fingerprint is printed at the start. Clients give it as --insecure-fingerprint, or the
    /// certificate's file as --ca; browsers warn, and show the same fingerprint.
    #[arg(long, env = "LOQUENT_TLS_SELF_SIGNED", conflicts_with = "tls_cert")]
    tls_self_signed: bool,
    /// Folder for the certificates of --tls-self-signed and --acme-domain [default: loquent/tls in
    /// the user's folder for data]
    #[arg(long, env = "LOQUENT_TLS_DIR", value_name = "DIR")]
    tls_dir: Option<PathBuf>,
    /// Maximum number of concurrent requests and answers on one QUIC connection
    #[arg(long, env = "LOQUENT_QUIC_MAX_STREAMS", default_value_t = 128, value_name = "N")]
    quic_max_streams: u32,
    /// Seconds that an answer is kept for a reader that lost its connection
    #[arg(long, env = "LOQUENT_RESUME_GRACE_S", default_value_t = 60.0, value_name = "S",
          value_parser = parse_seconds)]
    resume_grace_s: f64,
    /// Maximum size in bytes of the log that one answer keeps for a resume
    ///
    /// Beyond it, text that the reader acknowledged is dropped.
    #[arg(long, env = "LOQUENT_STREAM_LOG_BYTES", default_value_t = 256 * 1024, value_name = "N")]
    stream_log_bytes: usize,
    /// Maximum size in bytes of all logs together; beyond it, resumable requests get 429
    ///
    /// An answer that is being generated counts with its full --stream-log-bytes.
    #[arg(long, env = "LOQUENT_MAX_KEPT_BYTES", default_value_t = 512 * 1024 * 1024,
          value_name = "N")]
    max_kept_bytes: usize,
    /// Maximum number of running resumable answers per API key, or per address without keys; beyond
    /// it, requests get 429 [default: that of --max-inflight-requests]
    #[arg(long, env = "LOQUENT_MAX_ANSWERS_PER_KEY", value_name = "N")]
    max_answers_per_key: Option<usize>,
    /// Speed at which people read answers over QUIC, in tokens per second, for clients that do not
    /// hold text back at a speed of their own [default: none; all answers are computed alike]
    ///
    /// While requests wait, answers whose readers have seconds of text in hand make room for them
    /// (docs/scheduling.md). Not for programs that read as fast as they can.
    #[arg(long, env = "LOQUENT_READING_SPEED", value_name = "TOKENS_PER_S",
          value_parser = parse_reading_speed)]
    reading_speed: Option<f64>,
    #[command(flatten)]
    acme: AcmeArgs,
}

impl QuicArgs {
    pub(super) fn kept_answers(
        &self,
        streams: StreamBounds,
        max_inflight_requests: usize,
    ) -> ResumableLimits {
        ResumableLimits {
            log_bytes: self.stream_log_bytes.max(LOG_BYTES_MIN),
            unacked_bytes: streams.buffer_bytes,
            kept_bytes: self.max_kept_bytes,
            answers_per_key: self.max_answers_per_key.unwrap_or(max_inflight_requests),
            grace: Duration::from_secs_f64(self.resume_grace_s),
            stall_limit: streams.stall_limit,
            mute_limit: MUTE_LIMIT,
            token_time: self.reading_speed.map(|speed| Duration::from_secs_f64(1.0 / speed)),
        }
    }

    /// Returns the certificate given by the user, or ordered by `acme`.
    fn certificate(&self, acme: Option<&AcmeKeeper>) -> Option<CertificateSource> {
        if let Some(acme) = acme {
            return Some(acme.source());
        }
        let (chain, key) = (self.tls_cert.clone()?, self.tls_key.clone()?);
        Some(CertificateSource::Files { chain, key })
    }

    /// Returns the keeper of a certificate by ACME, if one is wanted.
    ///
    /// # Errors
    /// If a flag has a value that cannot be used, or no certificate can be kept.
    pub(super) fn acme(&self) -> anyhow::Result<Option<AcmeKeeper>> {
        let is_given = self.acme.is_given();
        is_given.then(|| self.acme.keeper(&self.certificate_folder()?)).transpose()
    }

    /// Returns the folder for certificates that are kept.
    fn certificate_folder(&self) -> anyhow::Result<PathBuf> {
        match self.tls_dir.clone().filter(|folder| !folder.as_os_str().is_empty()) {
            Some(folder) => Ok(folder),
            None => kept_certificate::default_folder(),
        }
    }

    /// Returns the certificate of HTTPS, if there is HTTPS: the user's, the one that `acme` orders,
    /// or the one that is kept for a server on `host`.
    ///
    /// # Errors
    /// If no certificate can be kept.
    pub(super) fn https(
        &self,
        host: &str,
        acme: Option<&AcmeKeeper>,
    ) -> anyhow::Result<Option<CertificateSource>> {
        if !self.tls_self_signed {
            return Ok(self.certificate(acme));
        }
        let folder = self.certificate_folder()?;
        kept_certificate::keep(&folder, names(host), SystemTime::now()).map(Some)
    }

    /// Returns the fingerprint of `https` if it is the certificate of `--tls-self-signed`.
    ///
    /// # Errors
    /// If its file is damaged.
    pub(super) fn fingerprint(
        &self,
        https: Option<&CertificateSource>,
    ) -> anyhow::Result<Option<Fingerprint>> {
        match https {
            Some(CertificateSource::Files { chain, .. }) if self.tls_self_signed => {
                kept_certificate::fingerprint(chain).map(Some)
            }
            _ => Ok(None),
        }
    }

    pub(super) fn resolve(
        &self,
        host: &str,
        http: &HttpArgs,
        acme: Option<&AcmeKeeper>,
    ) -> Option<QuicConfig> {
        // Browsers take a certificate by its hash only if it is valid for days: QUIC makes its own.
        let own = || CertificateSource::SelfSigned(names(host));
        let certificate = self.certificate(acme).unwrap_or_else(own);
        (!self.no_quic).then(|| QuicConfig {
            port: self.quic_port,
            // A port or certificate of the user's shows that QUIC is relied on.
            required: self.quic || self.quic_port.is_some() || self.tls_cert.is_some(),
            certificate,
            max_connections: http.max_connections(),
            max_connections_per_address: http.max_connections_per_address(),
            max_streams: self.quic_max_streams,
        })
    }
}

/// Returns the names in a certificate of the server's own, for clients that check names; those of
/// the delivery protocol check the hash.
fn names(host: &str) -> Vec<String> {
    let bound = host.parse().ok().filter(IpAddr::is_unspecified);
    let there = bound.and_then(outward).map(|address| address.to_string());
    let here = [host, "localhost", "127.0.0.1", "::1"].map(str::to_owned);
    here.into_iter().chain(there).collect()
}

fn parse_reading_speed(text: &str) -> Result<f64, String> {
    let speed = text.parse::<f64>().ok().filter(|it| (0.5..=50.0).contains(it));
    speed.ok_or_else(|| "give tokens per second, from 0.5 to 50".to_owned())
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().ok().filter(|it| it.is_finite() && (0.0..1e9).contains(it));
    seconds.ok_or_else(|| "give seconds, 0 or more".to_owned())
}
