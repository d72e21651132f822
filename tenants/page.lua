-- KEYS: epoch, ids in their order, rows by id. ARGV: where to begin, as ZRANGEBYLEX has it; how many, -1: all.
-- Returns false if the record is lost, else the rows, '' for one that is not there.
if redis.call('EXISTS', KEYS[1]) == 0 then
  return false
end
local rows = {}
for at, id in ipairs(redis.call('ZRANGEBYLEX', KEYS[2], ARGV[1], '+', 'LIMIT', 0, ARGV[2])) do
  rows[at] = redis.call('HGET', KEYS[3], id) or ''
end
return rows
