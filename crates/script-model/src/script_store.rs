//! A small Redis with a clock, for a world that calls the scripts as replicas do.

use crate::interpreter::Interpreter;
use crate::keyspace::{Keyspace, RedisReply};
use crate::scripts::{ScriptName, ScriptTexts};

/// The scripts and the keys on which they run, one call after the other.
pub struct ScriptStore {
    interpreter: Interpreter,
    keys: Keyspace,
    /// Time that has passed since the last whole second, in milliseconds.
    rest_ms: u64,
}

impl ScriptStore {
    /// Creates a store without keys that runs `texts`.
    pub fn new(texts: &ScriptTexts) -> Self {
        Self { interpreter: Interpreter::new(texts), keys: Keyspace::default(), rest_ms: 0 }
    }

    /// Lets `ms` pass.
    pub fn age(&mut self, ms: u64) {
        let passed_ms = self.rest_ms + ms;
        self.rest_ms = passed_ms % 1000;
        self.keys.expire_after(ms);
        self.keys.age_times(passed_ms / 1000);
    }

    /// Lets the clock go back by `ms`.
    pub fn rewind(&mut self, ms: u64) {
        self.keys.rewind(ms);
    }

    /// Runs `script` with `arguments`, of which the first is the prefix of all keys.
    ///
    /// # Panics
    /// When the script fails: a script of Loquent's never does.
    pub fn run(&mut self, script: ScriptName, arguments: &[Vec<u8>]) -> RedisReply {
        let keys = std::mem::take(&mut self.keys);
        let (keys, reply) = self.interpreter.run(script, arguments, keys);
        self.keys = keys;
        reply
    }

    /// Returns all keys.
    pub const fn keys(&self) -> &Keyspace {
        &self.keys
    }

    /// Replaces all keys, as a failover to a server with older ones does.
    pub fn restore(&mut self, keys: Keyspace) {
        self.keys = keys;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keyspace::NOW_S;

    fn announce(store: &mut ScriptStore) -> RedisReply {
        let arguments = ["l:", "A", "3000", "0"].map(|word| word.as_bytes().to_vec());
        store.run(ScriptName::Announce, &arguments)
    }

    #[test]
    fn a_lease_lasts_as_long_in_small_steps_as_in_one() {
        let mut store = ScriptStore::new(&ScriptTexts::default());
        assert_eq!(announce(&mut store), RedisReply::Int(0));
        let before = store.keys().clone();
        (0..599).for_each(|_| store.age(5));
        assert_eq!(announce(&mut store), RedisReply::Int(1), "5 ms are left of it");
        store.restore(before);
        (0..600).for_each(|_| store.age(5));
        assert_eq!(announce(&mut store), RedisReply::Int(0));
    }

    /// Stores an object with this progress and the fence 1; returns true if it is stored.
    fn put(store: &mut ScriptStore, progress: &str) -> bool {
        let created = format!("{NOW_S:016x}");
        let place = ["l:", "me", "2", "r1", created.as_str(), "3600"];
        let rest = ["checkpoint", progress, "A", "{}", "2", "9", "9", "1"];
        let words = place.into_iter().chain(rest);
        let arguments: Vec<_> = words.map(|word| word.as_bytes().to_vec()).collect();
        store.run(ScriptName::Put, &arguments) == RedisReply::Int(1)
    }

    #[test]
    fn a_checkpoint_that_comes_late_does_not_replace_the_end() {
        let mut store = ScriptStore::new(&ScriptTexts::default());
        assert!(put(&mut store, "running") && put(&mut store, "ended"));
        assert!(!put(&mut store, "running"), "it was sent before the end");
        assert!(put(&mut store, "ended"), "the reply to the first was lost");
    }

    #[test]
    fn an_object_that_was_deleted_after_its_end_is_not_stored_again() {
        let mut store = ScriptStore::new(&ScriptTexts::default());
        assert!(put(&mut store, "running") && put(&mut store, "ended"));
        let remove = ["l:", "3600", "me", "2", "r1", "60000"].map(|word| word.as_bytes().to_vec());
        assert_eq!(store.run(ScriptName::Remove, &remove), RedisReply::Int(1));
        assert!(!put(&mut store, "ended"), "its replica did not know that the store had it");
    }

    fn words(text: &str) -> Vec<Vec<u8>> {
        text.split(' ').map(|word| word.as_bytes().to_vec()).collect()
    }

    /// The notices that `replica` is told of.
    fn notices(store: &mut ScriptStore, replica: &str) -> Vec<RedisReply> {
        let call = words(&format!("l: {replica} 100"));
        let RedisReply::List(notices) = store.run(ScriptName::Others, &call) else {
            panic!("a list of notices");
        };
        notices
    }

    #[test]
    fn a_notice_is_told_to_others_as_long_as_its_replica_lives() {
        let mut store = ScriptStore::new(&ScriptTexts::default());
        // An older one, which has none.
        announce(&mut store);
        let say = |store: &mut ScriptStore, rest: &str| {
            store.run(ScriptName::Announce, &words(&format!("l: B {rest}")))
        };
        assert_eq!(say(&mut store, "3000 0 [old]"), RedisReply::Int(0));
        assert_eq!(say(&mut store, "3000 0 [new]"), RedisReply::Int(1));
        let new = RedisReply::Bulk(b"[new]".to_vec());
        for _ in 0..2 {
            assert_eq!(notices(&mut store, "A"), std::slice::from_ref(&new));
            assert!(notices(&mut store, "B").is_empty(), "its own");
            store.age(2000);
            say(&mut store, "3000 0 [new]");
        }
        store.age(3000);
        assert!(notices(&mut store, "A").is_empty(), "its lease is over");
        assert!(!store.keys().has("l:v"), "it is forgotten");
        say(&mut store, "3000 0 [new]");
        say(&mut store, "0 60000");
        assert!(!store.keys().has("l:v") && notices(&mut store, "A").is_empty(), "it has ended");
    }

    #[test]
    fn a_stop_deletes_the_log_of_an_evicted_answer() {
        let mut store = ScriptStore::new(&ScriptTexts::default());
        let write = words("p: A 60000 60000 3000 7 1 0 running token bytes request 1,0");
        store.run(ScriptName::Append, &write);
        assert!(store.keys().has("p:a:7") && store.keys().has("p:g:7"));
        let mut keys = store.keys().clone();
        keys.evict("p:a:7");
        store.restore(keys);
        assert_eq!(store.run(ScriptName::Stop, &words("p: 7 60000 60000")), RedisReply::Int(0));
        assert!(!store.keys().has("p:g:7"), "nobody finds it any more");
        let RedisReply::List(read) = store.run(ScriptName::Read, &words("p: B 9 9 3000 7 0"))
        else {
            panic!("a list of what is known");
        };
        assert_eq!(read[0], RedisReply::Bulk(b"stopped".to_vec()), "who has a copy learns of it");
    }
}
