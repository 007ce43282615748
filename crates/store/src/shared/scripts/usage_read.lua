-- Reads the usage of a day: usage_read.lua PREFIX DAY OWNER MOST. OWNER is empty for all owners, of whom at most MOST
-- are read. Returns a list of OWNER, NAME, REQUESTS, PROMPT, CACHED, COMPLETION, summed over the replicas, for each.
local day = ARGV[1] .. 'u:' .. ARGV[2]
local owners = { ARGV[3] }
if ARGV[3] == '' then
    owners = redis.call('SMEMBERS', day)
    table.sort(owners)
end
local rows = {}
for number, owner in ipairs(owners) do
    if number > tonumber(ARGV[4]) then break end
    local fields = redis.call('HGETALL', day .. ':' .. owner)
    local name, sums = '', { 0, 0, 0, 0 }
    for at = 1, #fields, 2 do
        if fields[at] == 'n' then
            name = fields[at + 1]
        else
            local place = 1
            for count in string.gmatch(fields[at + 1], '%d+') do
                if place <= 4 then sums[place] = sums[place] + tonumber(count) end
                place = place + 1
            end
        end
    end
    if #fields > 0 then
        rows[#rows + 1] = owner
        rows[#rows + 1] = name
        for place = 1, 4 do rows[#rows + 1] = string.format('%.0f', sums[place]) end
    end
end
return rows
