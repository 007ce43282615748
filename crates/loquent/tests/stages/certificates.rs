//! Processes of a split model that authenticate each other with certificates.

use std::path::Path;
use std::process::Command;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use crate::process::{Process, answer, bundled, split};

/// Writes an authority and a certificate that it signed for this machine; returns the options
/// that name them.
fn options(folder: &Path) -> Vec<String> {
    let mut params = CertificateParams::new(vec![]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let pair = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let certificate = params.signed_by(&pair, &authority).unwrap();
    let write = |name: &str, text: String| {
        std::fs::write(folder.join(name), text).unwrap();
        folder.join(name).to_str().unwrap().to_owned()
    };
    let mut options = Vec::new();
    options.extend(["--stage-tls-cert".to_owned(), write("own.pem", certificate.pem())]);
    options.extend(["--stage-tls-key".to_owned(), write("own.key", pair.serialize_pem())]);
    options.extend(["--stage-tls-ca".to_owned(), write("ca.pem", authority.pem())]);
    options
}

#[test]
fn stages_with_certificates_answer_as_the_whole_model_does() {
    let Some(model) = bundled() else { return };
    let whole = Process::serve(&["--model", model.to_str().unwrap()]);
    let expected = answer(&whole.address);
    drop(whole);
    let folder = tempfile::tempdir().unwrap();
    let files = split(&model, 3, folder.path());
    let options = options(folder.path());
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let stage = |file: &Path| {
        let fixed = ["stage", "--threads", "1", "--listen", "127.0.0.1:0", "--model"];
        let arguments = [&fixed[..], &[file.to_str().unwrap()], &options].concat();
        Process::start(&arguments, " on ")
    };
    // The first stage is in the server's process: it dials the second with certificates too.
    let (second, third) = (stage(&files[2]), stage(&files[3]));
    let list = format!("{},{},{}", files[1].to_str().unwrap(), second.address, third.address);
    let arguments = ["--model", files[0].to_str().unwrap(), "--stages", &list];
    let server = Process::serve(&[&arguments[..], &options].concat());
    assert_eq!(answer(&server.address), expected);
    drop(server);
    // Without certificates the stages refuse the server.
    let output = Command::new(env!("CARGO_BIN_EXE_loquent"))
        .args(["serve", "--port", "0", "--model", files[0].to_str().unwrap()])
        .args(["--stages", &format!("{},{}", second.address, third.address)])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("TLS only"), "{text}");
}

#[test]
fn certificates_come_with_key_and_authority() {
    let run = |options: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_loquent"));
        let output = command.args(["stage", "--model", "x"]).args(options).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let text = run(&["--stage-tls-cert", "a.pem"]);
    assert!(text.contains("--stage-tls-key") && text.contains("--stage-tls-ca"), "{text}");
    let text =
        run(&["--stage-tls-cert", "a.pem", "--stage-tls-key", "a.key", "--stage-tls-ca", "c.pem"]);
    assert!(text.contains("pem"), "the file that is missing is named: {text}");
}
