"""An authority of the tests' own, and a certificate that it signed."""

import datetime
import ipaddress

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


def certificate(folder, days, addresses=("127.0.0.1",)):
    """Files of an authority, and of a certificate that it signed, for localhost and `addresses`; its 90 days end in
    `days`."""
    now = datetime.datetime.now(datetime.timezone.utc)

    def signed(name, key, issuer, issuer_key, until, extension):
        builder = x509.CertificateBuilder()
        builder = builder.subject_name(name).issuer_name(issuer).public_key(key.public_key())
        builder = builder.serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(until - datetime.timedelta(days=90)).not_valid_after(until)
        return builder.add_extension(extension, critical=False).sign(issuer_key, hashes.SHA256())

    def named(text):
        return x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, text)])

    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    is_authority = x509.BasicConstraints(ca=True, path_length=None)
    later = now + datetime.timedelta(days=30)
    authority = signed(named("authority"), authority_key, named("authority"), authority_key, later, is_authority)
    also = [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), *also])
    until = now + datetime.timedelta(days=days)
    own = signed(named("localhost"), key, named("authority"), authority_key, until, names)
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    files = {"ca.pem": authority.public_bytes(pem), "cert.pem": own.public_bytes(pem), "key.pem": private}
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return [str(folder / name) for name in files]


@pytest.fixture(scope="session")
def authority(tmp_path_factory):
    """Folder of a certificate for localhost alone, its key, and the authority that signed it."""
    folder = tmp_path_factory.mktemp("authority")
    certificate(folder, days=30, addresses=())
    return folder


@pytest.fixture
def trusting(authority):
    """The environment of a program that trusts the authority."""
    return {"SSL_CERT_FILE": str(authority / "ca.pem")}
