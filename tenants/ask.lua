-- KEYS: epoch, then those of the commands. ARGV: {{command, key, …}, …} in msgpack.
-- Returns false if the record is lost, else the answers.
if redis.call('EXISTS', KEYS[1]) == 0 then
  return false
end
local answers = {}
for at, command in ipairs(cmsgpack.unpack(ARGV[1])) do
  answers[at] = redis.call(unpack(command))
end
return answers
