//! Tokens are accepted only with the provider's signature, for this server, and while they last.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use serde_json::json;

use super::*;
use crate::auth::ApiKeys;
use crate::clock::unix_time_s;

/// An identity provider with one key.
struct Provider {
    pair: EcdsaKeyPair,
    id: &'static str,
}

fn encoded(bytes: impl AsRef<[u8]>) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

impl Provider {
    fn new(id: &'static str) -> Self {
        let (random, algorithm) = (SystemRandom::new(), &ECDSA_P256_SHA256_FIXED_SIGNING);
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
        Self { pair: EcdsaKeyPair::from_pkcs8(algorithm, pkcs8.as_ref(), &random).unwrap(), id }
    }

    fn jwk(&self) -> Value {
        let point = self.pair.public_key().as_ref();
        let (x, y) = (encoded(&point[1..33]), encoded(&point[33..]));
        json!({"kty": "EC", "crv": "P-256", "x": x, "y": y, "kid": self.id, "use": "sig"})
    }

    fn token_with(&self, header: &Value, claims: &Value) -> String {
        let text = format!("{}.{}", encoded(header.to_string()), encoded(claims.to_string()));
        let signature = self.pair.sign(&SystemRandom::new(), text.as_bytes()).unwrap();
        format!("{text}.{}", encoded(signature))
    }

    fn token(&self, claims: &Value) -> String {
        self.token_with(&json!({"alg": "ES256", "typ": "JWT", "kid": self.id}), claims)
    }
}

fn claims() -> Value {
    json!({"sub": "ann", "aud": "loquent", "iss": "https://id.example", "exp": unix_time_s() + 600})
}

/// The claims with other values of some members; `null` removes one.
fn but(changes: &Value) -> Value {
    let mut claims = claims();
    let members = claims.as_object_mut().unwrap();
    for (name, value) in changes.as_object().unwrap() {
        match value {
            Value::Null => drop(members.remove(name)),
            value => drop(members.insert(name.clone(), value.clone())),
        }
    }
    claims
}

fn config(keys: &Value) -> JwtConfig {
    let text = json!({"keys": keys}).to_string();
    JwtConfig {
        source: KeySetSource::Url("test".into(), Arc::new(move |_| Ok(text.clone()))),
        audiences: vec!["loquent".into(), "chat".into()],
        issuer: Some("https://id.example".into()),
    }
}

fn verification(keys: &Value) -> JwtVerification {
    JwtVerification::load(config(keys)).unwrap()
}

fn why(verification: &JwtVerification, token: &str) -> String {
    match verification.verify(token.as_bytes()).map(|key| key.name.clone()) {
        Ok(name) => name.expect("a subject has a name"),
        Err(JwtRefusal::Unsigned) => "unsigned".into(),
        Err(JwtRefusal::Invalid(why)) => why,
    }
}

#[test]
fn a_token_is_its_subjects() {
    let provider = Provider::new("k1");
    let all = verification(&json!([provider.jwk()]));
    let key = |claims: &Value| all.verify(provider.token(claims).as_bytes()).unwrap();
    let ann = key(&claims());
    assert_eq!(ann.name.as_deref(), Some("jwt:ann"));
    assert!(!ann.is_admin && !ann.may_set_priority);
    let again = key(&but(&json!({"aud": ["other", "chat"], "admin": true})));
    assert!(Arc::ptr_eq(&ann, &again), "one subject has one count");
    assert_ne!(ann.tenant(), key(&but(&json!({"sub": "bob"}))).tenant());
    assert_eq!(all.subjects().all().len(), 2);
}

#[test]
fn claims_must_be_valid_here_and_now() {
    let provider = Provider::new("k1");
    let all = verification(&json!([provider.jwk()]));
    let (now, long) = (unix_time_s(), "x".repeat(MAX_SUBJECT_BYTES + 1));
    for (changes, told) in [
        (json!({"exp": now - 60}), "expired"),
        (json!({"exp": null}), "'exp'"),
        (json!({"exp": "never"}), "'exp'"),
        (json!({"nbf": now + 120}), "nbf"),
        (json!({"nbf": "now"}), "'nbf'"),
        (json!({"aud": "other"}), "aud"),
        (json!({"aud": null}), "'aud'"),
        (json!({"iss": "https://else.example"}), "iss"),
        (json!({"iss": null}), "'iss'"),
        (json!({"sub": null}), "claims"),
        (json!({"sub": 7}), "claims"),
        (json!({"sub": ""}), "subject"),
        (json!({"sub": "a\nb"}), "subject"),
        (json!({"sub": long}), "subject"),
    ] {
        let found = why(&all, &provider.token(&but(&changes)));
        assert!(found.contains(told), "{changes}: {found}");
    }
    assert_eq!(why(&all, &provider.token(&but(&json!({"exp": now - 5})))), "jwt:ann", "leeway");
}

#[test]
fn nothing_is_accepted_without_the_providers_signature() {
    let (provider, other) = (Provider::new("k1"), Provider::new("k1"));
    let all = verification(&json!([provider.jwk()]));
    let token = provider.token(&claims());
    let (head, signature) = token.rsplit_once('.').unwrap();
    let forged = encoded(but(&json!({"sub": "root"})).to_string());
    let first = head.split('.').next().unwrap();
    let header = |alg: &str, kid: Value| json!({"alg": alg, "kid": kid});
    for token in [
        other.token(&claims()),
        format!("{first}.{forged}.{signature}"),
        format!("{head}."),
        format!("{}.{forged}.", encoded(json!({"alg": "none"}).to_string())),
        provider.token_with(&header("none", json!("k1")), &claims()),
        provider.token_with(&header("HS256", json!("k1")), &claims()),
        provider.token_with(&header("RS256", json!("k1")), &claims()),
        provider.token_with(&header("ES384", json!("k1")), &claims()),
        provider.token_with(&header("ES256", json!("k2")), &claims()),
        provider.token(&but(&json!({"long": "x".repeat(MAX_TOKEN_BYTES)}))),
        "eyJ..".into(),
        "eyJhbGciOiJFUzI1NiJ9.e30.AA".into(),
    ] {
        assert_eq!(why(&all, &token), "unsigned", "{token}");
    }
    let nameless = provider.token_with(&json!({"alg": "ES256"}), &claims());
    assert_eq!(why(&all, &nameless), "jwt:ann", "each key is tried for a token that names none");
}

#[test]
fn an_address_with_many_wrong_keys_waits_before_a_new_token_is_checked() {
    let provider = Provider::new("k1");
    let keys = ApiKeys::load(&[], None, Some(config(&json!([provider.jwk()])))).unwrap();
    let enter = |token: &str, address: [u8; 4]| {
        let header = format!("Bearer {token}");
        let entered = keys.identify(Some(header.as_bytes()), address.into(), Duration::ZERO, 0);
        entered.map_or_else(|error| error.status(), |_| 200)
    };
    let (here, elsewhere) = ([192, 0, 2, 1], [192, 0, 2, 2]);
    let (known, new) = (provider.token(&claims()), provider.token(&but(&json!({"sub": "bob"}))));
    assert_eq!(enter(&known, here), 200);
    for n in 0..60 {
        assert_eq!(enter(&format!("wrong{n}"), here), 401);
    }
    assert_eq!(enter(&new, here), 429);
    assert_eq!(enter(&known, here), 200, "others may share the address");
    assert_eq!(enter(&new, elsewhere), 200);
}

/// The example of RFC 7515, appendix A.2: its signature is right, and it has expired in 2011.
#[test]
fn rs256_is_that_of_the_rfc() {
    let key = json!({
        "kty": "RSA",
        "n": "ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJ\
              PMEzP1Pt0Bm4d4QlL-yRT-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0\
              LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4uD\
              Zlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk2\
              PAcDTW9gb54h4FRWyuXpoQ",
        "e": "AQAB"
    });
    let token = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9\
                 leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2Vt\
                 Qgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds9uJdbF9CUAr7t1dnZcAcQjbKB\
                 YNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN\
                 9383LcOLn6_dO--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI\
                 8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw";
    let all = verification(&json!([key]));
    // What is missing from the claims is looked at behind the signature.
    assert_eq!(why(&all, token), "its claims are not those of RFC 7519");
    assert_eq!(why(&all, &token.replace("cC4hi", "cC4hj")), "unsigned");
}

#[test]
fn a_key_set_needs_a_key_that_signs() {
    let good = Provider::new("k1").jwk();
    let mut encrypts = good.clone();
    encrypts["use"] = "enc".into();
    let mut other = good.clone();
    other["alg"] = "ES384".into();
    let shared = json!({"kty": "oct", "k": "c2VjcmV0", "alg": "HS256"});
    for keys in [json!([]), json!([encrypts]), json!([other]), json!([shared]), json!([{}, 7])] {
        assert!(parse_key_set(&json!({"keys": keys}).to_string()).is_err(), "{keys}");
    }
    for text in ["", "[]", "{}", "{\"keys\": {}}"] {
        assert!(parse_key_set(text).is_err(), "{text}");
    }
    let mixed = json!({"keys": [shared, {"kty": "new"}, good]});
    assert_eq!(parse_key_set(&mixed.to_string()).unwrap().len(), 1);
    let many = json!({"keys": vec![good; 100]});
    assert_eq!(parse_key_set(&many.to_string()).unwrap().len(), MAX_JWKS);
}

#[test]
fn keys_are_replaced_by_those_of_a_changed_file() {
    let (old, new) = (Provider::new("k1"), Provider::new("k2"));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("jwks.json");
    let write = |keys: &Value| std::fs::write(&file, json!({"keys": keys}).to_string()).unwrap();
    write(&json!([old.jwk()]));
    let all = JwtVerification::load(JwtConfig {
        source: KeySetSource::File(file.clone()),
        audiences: vec!["loquent".into()],
        issuer: None,
    });
    let all = all.unwrap();
    assert_eq!(why(&all, &new.token(&claims())), "unsigned");
    write(&json!([new.jwk()]));
    all.refresh();
    assert_eq!(why(&all, &new.token(&claims())), "jwt:ann");
    assert_eq!(why(&all, &old.token(&claims())), "unsigned");
    std::fs::write(&file, "{").unwrap();
    all.refresh();
    assert_eq!(why(&all, &new.token(&claims())), "jwt:ann", "a broken file changes nothing");
}
