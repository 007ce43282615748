-- Looks for an answer: find.lua PREFIX ID. Returns the hash of its token and its state; nothing if there is none.
local known = redis.call('HMGET', ARGV[1] .. 'a:' .. ARGV[2], 't', 's')
if not known[1] then return false end
return {string.sub(known[1], 1, 128), string.sub(known[2] or '', 1, 16)}
