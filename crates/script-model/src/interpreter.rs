//! Runs a script over a key space, as Redis does.

use std::cell::RefCell;
use std::rc::Rc;

use mlua::{Function, Lua, Table, Value, Variadic};

use crate::keyspace::{CommandError, Keyspace, RedisReply};
use crate::scripts::{SCRIPTS, ScriptName, ScriptTexts};

/// The compiled scripts, and the keys that they work on.
pub struct Interpreter {
    lua: Lua,
    scripts: Vec<Function>,
    keys: Rc<RefCell<Keyspace>>,
}

impl Interpreter {
    /// Compiles `texts`.
    ///
    /// # Panics
    /// When a script cannot be compiled.
    pub fn new(texts: &ScriptTexts) -> Self {
        let (lua, keys) = (Lua::new(), Rc::<RefCell<Keyspace>>::default());
        let compile = |script: ScriptName| {
            let chunk = lua.load(texts.text(script)).set_name(script.name());
            chunk.into_function().expect("a script can be compiled")
        };
        let scripts = SCRIPTS.map(compile).into();
        set_redis(&lua, &keys).expect("the table `redis` can be made");
        Self { lua, scripts, keys }
    }

    /// Runs `script` with `arguments` on `keys`; returns the keys after it, and its reply.
    ///
    /// # Panics
    /// When the script fails: a script of Loquent's never does.
    pub fn run(
        &self,
        script: ScriptName,
        arguments: &[Vec<u8>],
        keys: Keyspace,
    ) -> (Keyspace, RedisReply) {
        *self.keys.borrow_mut() = keys;
        let reply = self.call(script, arguments);
        let reply = reply.unwrap_or_else(|error| panic!("{}.lua: {error}", script.name()));
        (std::mem::take(&mut *self.keys.borrow_mut()), reply)
    }

    fn call(&self, script: ScriptName, arguments: &[Vec<u8>]) -> mlua::Result<RedisReply> {
        let strings = arguments.iter().map(|bytes| self.lua.create_string(bytes));
        let strings = strings.collect::<mlua::Result<Vec<_>>>()?;
        self.lua.globals().raw_set("ARGV", self.lua.create_sequence_from(strings)?)?;
        of_lua(self.scripts[script as usize].call(())?)
    }
}

/// Sets the global `redis`, and makes an assignment to any other global an error, as in Redis.
fn set_redis(lua: &Lua, keys: &Rc<RefCell<Keyspace>>) -> mlua::Result<()> {
    let (redis, keys) = (lua.create_table()?, keys.clone());
    let call = lua.create_function(move |lua, words: Variadic<Value>| {
        let words = words.iter().map(word).collect::<mlua::Result<Vec<_>>>()?;
        let reply = keys.borrow_mut().run(&words);
        to_lua(lua, reply.map_err(|CommandError(why)| mlua::Error::runtime(why))?)
    })?;
    redis.raw_set("call", call)?;
    lua.globals().raw_set("redis", redis)?;
    let protection = "setmetatable(_G, {__newindex = function(_, name)\n\
                      error('a script sets the global ' .. name) end})";
    lua.load(protection).exec()
}

/// Returns an argument of a command as Redis receives it: a number becomes its digits.
fn word(value: &Value) -> mlua::Result<Vec<u8>> {
    match value {
        Value::String(text) => Ok(text.as_bytes().to_vec()),
        Value::Integer(number) => Ok(number.to_string().into_bytes()),
        Value::Number(number) if number.fract() == 0.0 => Ok(format!("{number:.0}").into_bytes()),
        other => Err(mlua::Error::runtime(format!("no argument of a command: {other:?}"))),
    }
}

/// A reply as the script sees it: no value is `false`.
fn to_lua(lua: &Lua, reply: RedisReply) -> mlua::Result<Value> {
    Ok(match reply {
        RedisReply::Nil => Value::Boolean(false),
        RedisReply::Int(number) => Value::Number(number as f64),
        RedisReply::Bulk(bytes) => Value::String(lua.create_string(bytes)?),
        RedisReply::List(replies) => {
            let values = replies.into_iter().map(|reply| to_lua(lua, reply));
            let values = values.collect::<mlua::Result<Vec<_>>>()?;
            Value::Table(lua.create_sequence_from(values)?)
        }
    })
}

/// A script's value as Redis replies it: a number loses its fraction, `false` is no value, and a
/// list ends before its first `nil`.
fn of_lua(value: Value) -> mlua::Result<RedisReply> {
    Ok(match value {
        Value::Nil | Value::Boolean(false) => RedisReply::Nil,
        Value::Boolean(true) => RedisReply::Int(1),
        Value::Integer(number) => RedisReply::Int(number),
        Value::Number(number) => RedisReply::Int(number as i64),
        Value::String(text) => RedisReply::Bulk(text.as_bytes().to_vec()),
        Value::Table(table) => RedisReply::List(list_of(&table)?),
        other => return Err(mlua::Error::runtime(format!("no reply: {other:?}"))),
    })
}

fn list_of(table: &Table) -> mlua::Result<Vec<RedisReply>> {
    table.sequence_values::<Value>().map(|value| of_lua(value?)).collect()
}
