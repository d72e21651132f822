-- How much of a chain's beginning each incarnation claims.
-- KEYS: what the keys of the root's entries begin with. ARGV: hashes of the chain's indexed blocks, 16 bytes
-- each; the incarnations asked for, 4 bytes each; most holders of an entry.
-- Returns {incarnation, number of indexed blocks} of those that claim any. What stands in an entry may be anything.
--
-- Who holds a block holds all before it, so going down a chain holders only become fewer: bisection, and at
-- each probe the group parts into those that hold it and the rest. At most R · log2(n) reads, and log2(n)
-- where all hold the same.
local function holders_at(depth)
  local key = KEYS[1] .. ARGV[1]:sub(16 * depth - 15, 16 * depth)
  local value = redis.pcall('GETRANGE', key, 0, 4 * ARGV[3] - 1)
  local holders = {}
  for at = 1, type(value) == 'string' and #value - 3 or 0, 4 do
    holders[value:sub(at, at + 3)] = true
  end
  return holders
end

local found = {}

-- All of the group hold `least` blocks (none at all is held by everyone), and at most `most`.
local function search(group, least, most)
  if #group == 0 or most == 0 then
    return
  end
  if least == most then
    for _, incarnation in ipairs(group) do
      found[#found + 1] = { incarnation, least }
    end
    return
  end
  local probe = math.ceil((least + most) / 2)
  local holders, deeper, rest = holders_at(probe), {}, {}
  for _, incarnation in ipairs(group) do
    table.insert(holders[incarnation] and deeper or rest, incarnation)
  end
  search(deeper, probe, most)
  search(rest, least, probe - 1)
end

local asked = {}
for at = 1, #ARGV[2], 4 do
  asked[#asked + 1] = ARGV[2]:sub(at, at + 3)
end
search(asked, 0, #ARGV[1] / 16)
return found
