//! Access with keys and tokens, and changes of the key file.

use std::fs;
use std::path::Path;

use super::*;
use crate::identity::token::USUAL_LIFE;

const HOME: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
const START: Duration = Duration::ZERO;

fn flags(keys: &[&str]) -> ApiKeys {
    let keys: Vec<_> = keys.iter().map(|&key| key.to_owned()).collect();
    ApiKeys::load(&keys, None, None).unwrap()
}

fn enter(keys: &ApiKeys, header: &str) -> Result<Identity, ApiError> {
    keys.identify(Some(header.as_bytes()), HOME, START, 0)
}

/// Keys of a file in a temporary folder.
struct InFile {
    folder: tempfile::TempDir,
    keys: ApiKeys,
}

impl InFile {
    fn new(text: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("keys"), text).unwrap();
        let keys = ApiKeys::load(&[], Some(folder.path().join("keys")), None).unwrap();
        Self { folder, keys }
    }

    fn path(&self) -> std::path::PathBuf {
        self.folder.path().join("keys")
    }

    /// Rewrites the file and reloads it, as the server does every second.
    fn rewrite(&self, text: &str) {
        fs::write(self.path(), text).unwrap();
        self.keys.refresh();
    }
}

#[test]
fn only_the_right_key_opens() {
    let keys = flags(&["secret", "another"]);
    for right in ["Bearer secret", "bearer secret", "BEARER  another "] {
        assert!(enter(&keys, right).is_ok(), "{right}");
    }
    for wrong in ["Bearer secre", "Bearer secrets", "secret", "Bearer ", "Bearer", "Basic secret"] {
        assert_eq!(enter(&keys, wrong).unwrap_err().status(), 401, "{wrong}");
    }
    assert_eq!(keys.identify(None, HOME, START, 0).unwrap_err().status(), 401);
    assert!(ApiKeys::default().identify(None, HOME, START, 0).is_ok());
}

#[test]
fn an_empty_key_is_refused_at_start() {
    for empty in ["", " ", "\t"] {
        assert!(ApiKeys::load(&["secret".into(), empty.into()], None, None).is_err(), "{empty:?}");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys");
    for no_key in ["", "\n", "# none yet\n"] {
        fs::write(&path, no_key).unwrap();
        assert!(ApiKeys::load(&[], Some(path.clone()), None).is_err(), "{no_key:?}");
    }
    let missing = Some(Path::new("/nonexistent/keys").to_owned());
    assert!(ApiKeys::load(&["secret".into()], missing, None).is_err());
}

#[test]
fn tenants_are_keys_and_without_keys_addresses() {
    let keys = flags(&["one", "two"]);
    let tenant = |header: &str| enter(&keys, header).unwrap().tenant;
    assert_eq!(tenant("Bearer one"), tenant("bearer one"));
    assert_ne!(tenant("Bearer one"), tenant("Bearer two"));
    let open = ApiKeys::default();
    let of = |address: IpAddr| open.identify(Some(b"Bearer x"), address, START, 0).unwrap().tenant;
    assert_eq!(of(HOME), of(HOME));
    assert_ne!(of(HOME), of(IpAddr::from([192, 0, 2, 2])));
}

#[test]
fn a_changed_file_changes_the_keys_and_a_bad_one_does_not() {
    let file = InFile::new("sk-one\n");
    assert!(enter(&file.keys, "Bearer sk-one").is_ok());
    file.rewrite("sk-two\n");
    assert!(enter(&file.keys, "Bearer sk-one").is_err());
    assert!(enter(&file.keys, "Bearer sk-two").is_ok());
    for bad in ["", "[[key]]\nname = \"a\"", "two words"] {
        file.rewrite(bad);
        assert!(enter(&file.keys, "Bearer sk-two").is_ok(), "{bad:?} has closed the server");
        assert!(file.keys.identify(None, HOME, START, 0).is_err(), "{bad:?} has opened it");
    }
    fs::remove_file(file.path()).unwrap();
    file.keys.refresh();
    assert!(enter(&file.keys, "Bearer sk-two").is_ok());
    file.rewrite("sk-two\n");
    file.rewrite("sk-one\n");
    assert!(enter(&file.keys, "Bearer sk-one").is_ok());
}

#[test]
fn work_that_goes_on_has_the_rights_that_its_owner_has_now() {
    let file = InFile::new("[[key]]\nname = \"a\"\nkey = \"sk-one\"\nweight = 4\n");
    let begun = enter(&file.keys, "Bearer sk-one").unwrap().key.unwrap();
    let now = |unix_s| file.keys.current(&begun, unix_s).map(|key| key.weight).ok();
    assert_eq!(now(0), Some(4));
    file.rewrite("[[key]]\nname = \"a\"\nkey = \"sk-two\"\nexpires = 1970-01-02\n");
    assert_eq!((now(0), now(86_400)), (Some(1), None));
    file.rewrite("[[key]]\nname = \"b\"\nkey = \"sk-one\"\n");
    assert_eq!(now(0), None, "the key is another owner's");
    let flags = flags(&["one", "two"]);
    let two = enter(&flags, "Bearer two").unwrap().key.unwrap();
    assert!(Arc::ptr_eq(&flags.current(&two, 0).unwrap(), &two));
}

#[tokio::test]
async fn the_file_is_looked_at_every_second() {
    let file = InFile::new("sk-one\n");
    let watching = tokio::spawn(file.keys.clone().keep_current());
    fs::write(file.path(), "sk-two\n").unwrap();
    let taken_over = async {
        while enter(&file.keys, "Bearer sk-two").is_err() {
            tokio::time::sleep(CHECK_EVERY / 50).await;
        }
    };
    tokio::time::timeout(60 * CHECK_EVERY, taken_over).await.unwrap();
    watching.abort();
}

#[test]
fn an_owner_keeps_its_counts_and_gets_its_new_weight() {
    let table = |weight: u32, key: &str| {
        format!("[[key]]\nname = \"team\"\nkey = \"{key}\"\nweight = {weight}\n")
    };
    let file = InFile::new(&table(2, "sk-one"));
    let before = enter(&file.keys, "Bearer sk-one").unwrap();
    before.count(|usage| &usage.requests, 3);
    file.rewrite(&table(5, "sk-two"));
    let after = enter(&file.keys, "Bearer sk-two").unwrap();
    assert_eq!((before.scheduled().weight, after.scheduled().weight), (2, 5));
    assert_eq!(before.tenant, after.tenant);
    let usage = &file.keys.named()[0].usage;
    assert_eq!(usage.requests.load(std::sync::atomic::Ordering::Relaxed), 3);
}

#[test]
fn two_owners_never_share_a_key_or_a_name() {
    let file = InFile::new("sk-one\n");
    let table = |name: &str, key: &str| format!("[[key]]\nname = \"{name}\"\nkey = \"{key}\"\n");
    file.rewrite(&(table("a", "sk-two") + &table("b", "sk-two")));
    assert!(enter(&file.keys, "Bearer sk-two").is_err());
    file.rewrite(&(table("a", "sk-two") + &table("a", "sk-three")));
    assert!(enter(&file.keys, "Bearer sk-two").is_err());
    file.rewrite(&(table("a", "sk-two") + &table("b", "sk-three")));
    assert!(enter(&file.keys, "Bearer sk-two").is_ok());
}

#[test]
fn a_table_says_more_of_a_key_than_a_flag() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys");
    fs::write(&path, "[[key]]\nname = \"a\"\nkey = \"sk-one\"\nweight = 3\n").unwrap();
    let keys = ApiKeys::load(&["sk-one".into(), "sk-two".into()], Some(path), None).unwrap();
    assert_eq!(enter(&keys, "Bearer sk-one").unwrap().scheduled().weight, 3);
    assert_eq!(enter(&keys, "Bearer sk-two").unwrap().scheduled().weight, 1);
}

#[test]
fn a_key_expires() {
    let file = InFile::new("[[key]]\nname = \"a\"\nkey = \"sk\"\nexpires = 1970-01-02\n");
    let at = |unix_s| file.keys.identify(Some(b"Bearer sk"), HOME, START, unix_s);
    assert!(at(86_399).is_ok());
    assert_eq!(at(86_400).unwrap_err().status(), 401);
}

#[test]
fn wrong_keys_are_told_to_wait_and_right_ones_are_not() {
    let keys = flags(&["secret"]);
    let statuses: Vec<_> =
        (0..100).map(|n| enter(&keys, &format!("Bearer {n}")).unwrap_err().status()).collect();
    assert_eq!((statuses[0], statuses[99]), (401, 429));
    let refused = enter(&keys, "Bearer wrong").unwrap_err();
    assert!(refused.retry_after_s().is_some());
    // Others may share the address.
    assert!(enter(&keys, "Bearer secret").is_ok());
    let elsewhere = IpAddr::from([192, 0, 2, 2]);
    let wrong = keys.identify(Some(b"Bearer wrong"), elsewhere, START, 0);
    assert_eq!(wrong.unwrap_err().status(), 401);
}

fn token_of(keys: &ApiKeys, key: &str) -> String {
    let wish = TokenWish { life: USUAL_LIFE, max_requests: None, reader: None };
    keys.mint(Some(format!("Bearer {key}").as_bytes()), &wish, 0).unwrap().text
}

#[test]
fn a_token_has_none_of_its_keys_further_rights() {
    let table = "[[key]]\nname = \"a\"\nkey = \"sk-a\"\npriority = true\nadmin = true\n";
    let keys = InFile::new(table);
    let key = enter(&keys.keys, "Bearer sk-a").unwrap();
    let token = enter(&keys.keys, &format!("Bearer {}", token_of(&keys.keys, "sk-a"))).unwrap();
    assert_eq!((token.tenant, token.owner()), (key.tenant, key.owner()));
    assert!(key.may_set_priority() && !token.may_set_priority());
    assert!(key.may_watch() && !token.may_watch());
    assert!(token.check_scope(&http::Method::POST, "/v1/tokens").is_err());
}

#[test]
fn a_token_ends_with_the_key_that_made_it() {
    let file = InFile::new("[[key]]\nname = \"a\"\nkey = [\"sk-old\", \"sk-new\"]\n");
    let (old, new) = (token_of(&file.keys, "sk-old"), token_of(&file.keys, "sk-new"));
    file.rewrite("[[key]]\nname = \"a\"\nkey = \"sk-new\"\n");
    assert_eq!(enter(&file.keys, &format!("Bearer {old}")).unwrap_err().status(), 401);
    assert!(enter(&file.keys, &format!("Bearer {new}")).is_ok());
    file.rewrite("[[key]]\nname = \"a\"\nkey = \"sk-new\"\nexpires = 1970-01-02\n");
    let late = file.keys.identify(Some(format!("Bearer {new}").as_bytes()), HOME, START, 86_400);
    assert_eq!(late.unwrap_err().status(), 401);
}
