//! TLS 1.3 on the links between stages, with certificates on both ends.
//!
//! All processes of a split model have certificates of one authority, which signs for nothing else.
//! Both ends of a link check the other's certificate; the dialler also checks that it names the
//! host that was dialled.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, ClientConnection, Connection, Error, RootCertStore,
    ServerConfig, ServerConnection,
};

use super::StageError;

/// Bytes read from the network at once: the longest TLS record.
const CHUNK_BYTES: usize = 16 << 10;

/// A process's certificate, and the authority whose certificates it accepts.
#[derive(Debug, Clone)]
pub struct Tls {
    dials: Arc<ClientConfig>,
    accepts: Arc<ServerConfig>,
}

impl Tls {
    /// Loads the certificate `chain` (this process's certificate first), its private `key` and
    /// the certificates of the `authority`, all in PEM.
    ///
    /// # Errors
    /// [`StageError::Certificates`] with the file and the fault.
    pub fn load(chain: &Path, key: &Path, authority: &Path) -> Result<Self, StageError> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(authority)? {
            roots.add(certificate).map_err(named(authority))?;
        }
        let (certificates, secret) = (certificates(chain)?, PrivateKeyDer::from_pem_file(key));
        let secret = secret.map_err(named(key))?;
        // What can still be wrong is the key: another certificate's, or of an unknown kind.
        Self::of(certificates, secret, Arc::new(roots)).map_err(named(key))
    }

    fn of(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        roots: Arc<RootCertStore>,
    ) -> Result<Self, Error> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier =
            WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone()).build();
        let accepts = ServerConfig::builder_with_provider(provider.clone())
            // Both ends are of one version of Loquent, so nothing older is needed.
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(verifier.map_err(|e| Error::General(e.to_string()))?)
            .with_single_cert(chain.clone(), key.clone_key())?;
        let dials = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)?;
        Ok(Self { dials: Arc::new(dials), accepts: Arc::new(accepts) })
    }

    /// Performs the TLS handshake with the process that was dialled at `address`.
    pub(super) fn connect(&self, socket: TcpStream, address: &str) -> io::Result<StageStream> {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        // IPv6 addresses are in brackets, which a certificate does not have.
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(host).map_err(io::Error::other)?;
        let connection = ClientConnection::new(self.dials.clone(), name);
        handshake(socket, Connection::Client(connection.map_err(io::Error::other)?))
    }

    /// Performs the TLS handshake with the process that dialled.
    pub(super) fn accept(&self, socket: TcpStream) -> io::Result<StageStream> {
        let connection = ServerConnection::new(self.accepts.clone());
        handshake(socket, Connection::Server(connection.map_err(io::Error::other)?))
    }
}

fn named<E: std::fmt::Display>(path: &Path) -> impl Fn(E) -> StageError {
    move |error| StageError::Certificates(format!("{}: {error}", path.display()))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, StageError> {
    let certificates = CertificateDer::pem_file_iter(path).map_err(named(path))?;
    let certificates: Vec<_> = certificates.collect::<Result<_, _>>().map_err(named(path))?;
    match certificates.is_empty() {
        true => Err(named(path)("no certificate in it")),
        false => Ok(certificates),
    }
}

fn handshake(mut socket: TcpStream, mut tls: Connection) -> io::Result<StageStream> {
    while tls.is_handshaking() {
        // No bytes in either direction: the other end has closed the connection.
        if tls.complete_io(&mut socket)? == (0, 0) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    let tls = Some(Arc::new(Mutex::new(tls)));
    Ok(StageStream { socket: Arc::new(socket), tls, undecrypted: VecDeque::new() })
}

/// Returns why TLS failed, and how to fix it, if `error` is an error of TLS.
pub(super) fn complaint(error: &io::Error) -> Option<String> {
    let error = error.get_ref()?.downcast_ref::<Error>()?;
    Some(match error {
        Error::InvalidMessage(_) => "it does not speak TLS; start it with --stage-tls-cert".into(),
        Error::NoCertificatesPresented => {
            "it has no certificate; start it with --stage-tls-cert".into()
        }
        Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            "its certificate is not of the authority in --stage-tls-ca".into()
        }
        Error::AlertReceived(alert) => format!("it does not accept our certificate ({alert:?})"),
        other => other.to_string(),
    })
}

/// A connection with or without encryption. One clone reads and one writes, on two threads.
#[derive(Debug, Clone)]
pub(super) struct StageStream {
    socket: Arc<TcpStream>,
    /// Locked only for encrypting and decrypting. A thread that waited for the network with the
    /// lock would make the other direction wait too.
    tls: Option<Arc<Mutex<Connection>>>,
    /// Bytes received and not yet passed to `tls`; used by the clone that reads.
    undecrypted: VecDeque<u8>,
}

impl StageStream {
    pub(super) fn plain(socket: TcpStream) -> Self {
        Self { socket: Arc::new(socket), tls: None, undecrypted: VecDeque::new() }
    }

    /// The underlying socket, to be closed from another thread.
    pub(super) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Closes the sending direction, so that the other end sees a clean end.
    pub(super) fn finish(&self) -> io::Result<()> {
        if let Some(tls) = &self.tls {
            lock(tls).send_close_notify();
            self.send_encrypted(tls)?;
        }
        self.socket.shutdown(Shutdown::Write)
    }

    /// Closes both directions: both clones see the end at once.
    pub(super) fn close(&self) -> io::Result<()> {
        self.socket.shutdown(Shutdown::Both)
    }

    fn send_encrypted(&self, tls: &Mutex<Connection>) -> io::Result<()> {
        // Into memory first, so that the lock is free while the network takes the bytes.
        let mut bytes = Vec::new();
        {
            let mut tls = lock(tls);
            while tls.wants_write() {
                tls.write_tls(&mut bytes)?;
            }
        }
        (&*self.socket).write_all(&bytes)
    }
}

fn lock(tls: &Mutex<Connection>) -> MutexGuard<'_, Connection> {
    tls.lock().expect("no thread panics with this lock")
}

impl Read for StageStream {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let Some(tls) = self.tls.clone() else { return (&*self.socket).read(out) };
        loop {
            {
                let mut tls = lock(&tls);
                // First what is decrypted already: one record may hold several frames.
                match tls.reader().read(out) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    done => return done,
                }
                if !self.undecrypted.is_empty() {
                    tls.read_tls(&mut self.undecrypted)?;
                    let taken = tls.process_new_packets();
                    taken.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
                    continue;
                }
            }
            let mut chunk = [0; CHUNK_BYTES];
            match (&*self.socket).read(&mut chunk)? {
                // Whether that is a clean end is seen from the frames, which carry their length.
                0 => return Ok(0),
                len => self.undecrypted.extend(&chunk[..len]),
            }
        }
    }
}

impl Write for StageStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(tls) = &self.tls else { return (&*self.socket).write(bytes) };
        let taken = lock(tls).writer().write(bytes)?;
        self.send_encrypted(tls)?;
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        (&*self.socket).flush()
    }
}
