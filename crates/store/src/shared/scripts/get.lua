-- Reads an object: get.lua PREFIX OWNER KIND ID AGE_S MOST_BYTES REPLICA. Returns its place, its progress, what is
-- known of the replica that stored it, and its JSON; only its place if that is longer than MOST_BYTES.
-- Who asks does not generate it: an object of its own has no replica.
local prefix, owner, kind, id, age = unpack(ARGV, 1, 5)
-- One clock decides for all replicas what is too old.
local cutoff = string.format('%016x', math.max(0, redis.call('TIME')[1] - age))
local object = prefix .. 'o:' .. owner .. ':' .. kind .. id
local member = redis.call('HGET', object, 'm')
if not member or string.sub(member, 1, 16) < cutoff then return false end
member = string.sub(member, 1, 512)
if redis.call('HSTRLEN', object, 'j') > tonumber(ARGV[6]) then return {member} end
local fields = redis.call('HMGET', object, 'p', 'r', 'j')
local replica = fields[2] or ''
local lives = 'silent'
if redis.call('EXISTS', prefix .. 'p:' .. replica) == 1 then lives = 'lives' end
local has_ended = redis.call('EXISTS', prefix .. 'd:' .. replica) == 1
if replica == '' or replica == ARGV[7] or lives == 'silent' and has_ended then lives = 'none' end
return {member, string.sub(fields[1] or '', 1, 16), lives, fields[3] or ''}
