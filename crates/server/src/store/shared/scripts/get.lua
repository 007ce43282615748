-- Reads an object: get.lua PREFIX OWNER KIND ID CUTOFF MOST_BYTES. Returns its place, its progress, whether
-- the replica that stored it lives, and its JSON; only its place if that is longer than MOST_BYTES.
local prefix, owner, kind, id, cutoff = unpack(ARGV, 1, 5)
local object = prefix .. 'o:' .. owner .. ':' .. kind .. id
local member = redis.call('HGET', object, 'm')
if not member or string.sub(member, 1, 16) < cutoff then return false end
member = string.sub(member, 1, 512)
if redis.call('HSTRLEN', object, 'j') > tonumber(ARGV[6]) then return {member} end
local fields = redis.call('HMGET', object, 'p', 'r', 'j')
local lives = redis.call('EXISTS', prefix .. 'p:' .. (fields[2] or ''))
return {member, string.sub(fields[1] or '', 1, 16), lives, fields[3] or ''}
