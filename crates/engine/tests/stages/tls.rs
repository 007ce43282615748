//! TLS between stages with generated certificates: good ones, wrong ones and none.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use loquent_engine::staged::{Cluster, StageError, StageTrust, Tls};
use loquent_infer::remote::RemoteStages;
use loquent_infer::runner::{Recovery, RunError, Runner, Slot};
use loquent_infer::sampling::{Sampler, Sampling};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::ServerName;

use super::toy::{self, Site};
use super::{assign, run_one, wait_until};

/// An authority, and the folder in which it stores the certificates that it signs.
struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: PathBuf,
}

impl Authority {
    fn new(folder: &Path, name: &str) -> Self {
        let folder = folder.join(name);
        std::fs::create_dir(&folder).unwrap();
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        std::fs::write(folder.join("ca.pem"), issuer.pem()).unwrap();
        Self { issuer, folder }
    }

    /// Signs a certificate for `host`; returns the files of chain and key.
    fn sign(&self, host: &str) -> (PathBuf, PathBuf) {
        let pair = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![host.to_owned()]).unwrap();
        let certificate = params.signed_by(&pair, &self.issuer).unwrap();
        let file = |end: &str| self.folder.join(format!("{host}.{end}"));
        std::fs::write(file("pem"), certificate.pem()).unwrap();
        std::fs::write(file("key"), pair.serialize_pem()).unwrap();
        (file("pem"), file("key"))
    }

    fn certificate(&self) -> PathBuf {
        self.folder.join("ca.pem")
    }

    /// The trust of a process on `host` with a certificate of this authority.
    fn trust(&self, host: &str) -> StageTrust {
        let (chain, key) = self.sign(host);
        with_tls(Tls::load(&chain, &key, &self.certificate()).expect("the files are sound"))
    }
}

fn with_tls(tls: Tls) -> StageTrust {
    StageTrust { tls: Some(tls), ..StageTrust::default() }
}

fn connect(site: &Site, trust: StageTrust) -> Result<Cluster, StageError> {
    let mut wanted = toy::options();
    wanted.trust = trust;
    site.connect(wanted)
}

#[test]
fn stages_with_certificates_answer_as_those_without() {
    let folder = tempfile::tempdir().unwrap();
    let trust = Authority::new(folder.path(), "ours").trust("127.0.0.1");
    let plain = Site::start(3);
    let mut runner = plain.runner();
    assign(&mut runner, 0);
    let expected = run_one(&mut runner, 0, 0, &[1, 2, 3]).unwrap().unwrap();
    let mut site = Site::trusting(3, trust.clone());
    let cluster = connect(&site, trust).unwrap();
    let mut runner = toy::runner(&cluster);
    // A message of many TLS records.
    let logit_bias = (0..40_000).map(|token| (token, -0.0)).collect();
    let sampling = Sampling { logit_bias, ..Sampling::default() };
    runner.assign(Slot(0), Sampler::new(sampling, &[], &[]));
    assert_eq!(run_one(&mut runner, 0, 0, &[1, 2, 3]).unwrap(), Ok(expected));
    site.stop(1);
    wait_until("the outage", || cluster.outage().is_some());
    let lost = run_one(&mut runner, 0, 3, &[4]);
    assert!(matches!(lost, Err(RunError::Lost(_))), "{lost:?}");
    site.restart(1);
    wait_until("the return", || runner.poll_recovery() == Recovery::Ready);
    assign(&mut runner, 0);
    assert_eq!(run_one(&mut runner, 0, 0, &[1, 2, 3]).unwrap(), Ok(expected));
    cluster.stop();
}

fn tls_error(outcome: Result<Cluster, StageError>) -> String {
    match outcome.map(|cluster| cluster.stop()) {
        Err(StageError::Tls { what, .. }) => what,
        other => panic!("no error of TLS: {other:?}"),
    }
}

#[test]
fn certificates_of_others_are_refused_at_both_ends() {
    let folder = tempfile::tempdir().unwrap();
    let ours = Authority::new(folder.path(), "ours");
    let theirs = Authority::new(folder.path(), "theirs");
    let site = Site::trusting(1, ours.trust("127.0.0.1"));
    let why = tls_error(connect(&site, theirs.trust("127.0.0.1")));
    assert!(why.contains("not of the authority in --stage-tls-ca"), "{why}");
    // It trusts our authority, and shows a certificate of another.
    let (chain, key) = theirs.sign("127.0.0.1");
    let stranger = Tls::load(&chain, &key, &ours.certificate()).unwrap();
    let why = tls_error(connect(&site, with_tls(stranger)));
    assert!(why.contains("does not accept our certificate"), "{why}");
    let elsewhere = Site::trusting(1, ours.trust("stage.example"));
    let why = tls_error(connect(&elsewhere, ours.trust("127.0.0.1")));
    assert!(why.contains("not valid for name"), "{why}");
    // The stage still works after all that.
    let cluster = connect(&site, ours.trust("127.0.0.1")).unwrap();
    let mut runner = toy::runner(&cluster);
    assign(&mut runner, 0);
    assert!(run_one(&mut runner, 0, 0, &[1]).unwrap().is_ok());
    cluster.stop();
}

#[test]
fn an_end_without_tls_learns_why() {
    let folder = tempfile::tempdir().unwrap();
    let ours = Authority::new(folder.path(), "ours");
    let site = Site::trusting(1, ours.trust("127.0.0.1"));
    let refused = connect(&site, toy::trust()).map(drop);
    let Err(StageError::Refused { why, .. }) = refused else { panic!("{refused:?}") };
    assert!(why.contains("TLS only"), "{why}");
    let plain = Site::start(1);
    let why = tls_error(connect(&plain, ours.trust("127.0.0.1")));
    assert!(why.contains("does not speak TLS"), "{why}");
}

#[test]
fn the_key_is_required_in_addition_to_certificates() {
    let folder = tempfile::tempdir().unwrap();
    let ours = Authority::new(folder.path(), "ours");
    let site = Site::trusting(1, StageTrust { key: toy::trust().key, ..ours.trust("127.0.0.1") });
    let refused = connect(&site, ours.trust("127.0.0.1")).map(drop);
    assert!(matches!(refused, Err(StageError::Refused { .. })), "{refused:?}");
}

/// A TLS client without a certificate.
fn bare_client(authority: &Path) -> rustls::ClientConnection {
    use rustls::pki_types::pem::PemObject;
    let mut roots = rustls::RootCertStore::empty();
    roots.add(rustls::pki_types::CertificateDer::from_pem_file(authority).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    rustls::ClientConnection::new(Arc::new(config), name).unwrap()
}

#[test]
fn strangers_without_certificates_learn_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let ours = Authority::new(folder.path(), "ours");
    let trust = ours.trust("127.0.0.1");
    let site = Site::trusting(1, trust.clone());
    let address = &site.stages[0].address;
    let socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut stream = rustls::StreamOwned::new(bare_client(&ours.certificate()), socket);
    let refused = stream.read(&mut [0; 64]).unwrap_err();
    assert!(refused.to_string().contains("CertificateRequired"), "{refused}");
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[22, 3, 1, 255, 255, 1], &[0xff; 400]] {
        let mut socket = TcpStream::connect(address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        socket.write_all(bytes).unwrap();
        let mut answer = Vec::new();
        // A TLS alert, or a cut connection.
        let _ = socket.read_to_end(&mut answer);
        assert!(answer.len() < 64, "a stage sends strangers no more than an alert");
    }
    let cluster = connect(&site, trust).unwrap();
    cluster.stop();
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let ours = Authority::new(folder.path(), "ours");
    let (chain, key) = ours.sign("a.example");
    let (_, other_key) = ours.sign("b.example");
    let empty = folder.path().join("empty.pem");
    std::fs::write(&empty, "nothing").unwrap();
    let missing = folder.path().join("missing.pem");
    let authority = ours.certificate();
    let cases: [([&Path; 3], &str); 5] = [
        ([&missing, &key, &authority], "missing.pem"),
        ([&empty, &key, &authority], "empty.pem: no certificate in it"),
        ([&chain, &empty, &authority], "empty.pem"),
        ([&chain, &other_key, &authority], "b.example.key"),
        ([&chain, &key, &empty], "empty.pem"),
    ];
    for ([chain, key, authority], named) in cases {
        let error = Tls::load(chain, key, authority).map(drop).unwrap_err().to_string();
        assert!(error.contains(named), "{error} does not name {named}");
    }
}
