-- Records usage: usage_record.lua PREFIX REPLICA KEPT_S {DAY OWNER NAME REQUESTS PROMPT CACHED COMPLETION}. The sums of
-- REPLICA for each day and owner replace its earlier ones. A day's keys live for KEPT_S after the last write.
for at = 4, #ARGV, 7 do
    local day, owner = ARGV[at], ARGV[at + 1]
    local owners = ARGV[1] .. 'u:' .. day
    local row = owners .. ':' .. owner
    redis.call('HSET', row, 'n', ARGV[at + 2], ARGV[2], table.concat(ARGV, ' ', at + 3, at + 6))
    redis.call('SADD', owners, owner)
    redis.call('EXPIRE', row, ARGV[3])
    redis.call('EXPIRE', owners, ARGV[3])
end
return 1
