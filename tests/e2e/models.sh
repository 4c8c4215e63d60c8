#!/usr/bin/env bash
# Hostile and damaged checkpoints.
. "$(dirname "$0")/lib/e2e.sh"

broken() { # NAME PATTERN: the copy in $folder must be refused
	refuses "$1" 3 "$2" run "$folder" --tokens 1 --json
	rm -rf "$folder"
	folder=$(copy_model llama)
	file=$folder/model.safetensors
}
edited() { # NAME PATTERN SED_EXPRESSION
	edit_header "$file" "$3"
	broken "$1" "$2"
}

folder=$(copy_model llama)
file=$folder/model.safetensors
good=$golden/llama/model.safetensors
n=$(header_bytes "$good")

for size in 0 7 8 9 $((n + 7)) $((n + 8)) $((n + 9)) $(($(wc -c <"$good") - 1)); do
	head -c "$size" "$good" >"$file"
	broken "truncated to $size bytes" 'model.safetensors'
done
for length in 0 1 $((n - 1)) $((n + 1)) $(((1 << 62) + (1 << 62) - 1)) $((1 << 63)) -1 $((1 << 40)); do
	{ u64 "$length"; tail -c +9 "$good"; } >"$file"
	broken "header length $length" 'model.safetensors'
done

edited "overlapping offsets" 'model' 's/\[40960,81920\]/[40956,81916]/'
edited "the same offsets twice" 'model' 's/\[40960,81920\]/[0,40960]/'
edited "negative offset" 'model' 's/\[0,40960\]/[-40960,0]/'
edited "offsets the wrong way round" 'model' 's/\[0,40960\]/[40960,0]/'
edited "offset beyond the file" 'model' 's/\[0,40960\]/[9000000,9040960]/'
edited "offset of 2^63" 'model' 's/\[0,40960\]/[9223372036854775808,9223372036854816768]/'
edited "offset of 2^64+" 'model' 's/\[0,40960\]/[0,99999999999999999999999]/'
edited "offset as a fraction" 'model' 's/\[0,40960\]/[0.5,40960]/'
edited "offset as a string" 'model' 's/\[0,40960\]/["0",40960]/'
edited "three offsets" 'model' 's/\[0,40960\]/[0,40960,1]/'
edited "offsets missing" 'model' 's/,"data_offsets":\[0,40960\]//'
edited "integer dtype" 'lm_head.weight' '0,/"dtype":"F32"/s//"dtype":"I32"/'
edited "dtype of another size" 'lm_head.weight' '0,/"dtype":"F32"/s//"dtype":"F64"/'
edited "dtype that does not exist" 'lm_head.weight' '0,/"dtype":"F32"/s//"dtype":"Q9"/'
edited "dtype as a number" 'model' '0,/"dtype":"F32"/s//"dtype":32/'
edited "shape turned round" 'lm_head.weight' 's/"shape":\[160,64\]/"shape":[64,160]/'
edited "shape larger than its bytes" 'lm_head.weight' 's/"shape":\[160,64\]/"shape":[320,64]/'
edited "shape with a negative" 'lm_head.weight' 's/"shape":\[160,64\]/"shape":[-160,-64]/'
edited "shape whose product overflows" 'lm_head.weight' 's/"shape":\[160,64\]/"shape":[4294967296,4294967296]/'
edited "shape of five" 'lm_head.weight' 's/"shape":\[160,64\]/"shape":[1,1,1,160,64]/'
edited "shape missing" 'model' 's/"shape":\[160,64\],//'
edited "tensor missing" 'up_proj' 's/layers\.1\.mlp\.up_proj\.weight/layers.1.mlp.other/'
edited "tensor twice" 'model' 's/model\.embed_tokens\.weight/lm_head.weight/'
edited "header is an array" 'model.safetensors' 's/.*/[]/'
edited "header is no JSON" 'model.safetensors' 's/.$/!/'
edited "header nested without end" 'model.safetensors' "s/.*/$(head -c 50000 /dev/zero | tr '\0' '[')/"
rm "$file"
broken "no weights at all" 'safetensors'
rm "$file"
mkdir "$file"
broken "weights file is a folder" 'model.safetensors'

# Several files.
shards() { # NAME PATTERN
	refuses "$1" 3 "$2" run "$folder" --tokens 1 --json
	rm -rf "$folder"
	folder=$(copy_model llama-split)
	index=$folder/model.safetensors.index.json
}
rm -rf "$folder"
folder=$(copy_model llama-split)
index=$folder/model.safetensors.index.json
succeeds "several files" 10 run "$folder" --tokens 1 --json -n 2 && ok "several files"
rm "$folder/model-00002-of-00003.safetensors"
shards "missing shard" 'model-00002-of-00003'
truncate -s 1000 "$folder/model-00003-of-00003.safetensors"
shards "truncated shard" 'model-00003-of-00003'
cp "$folder/model-00002-of-00003.safetensors" "$work/outside.safetensors"
for path in "../outside.safetensors" "$work/outside.safetensors" "./../outside.safetensors" "sub/../../outside.safetensors" "..\\\\\\\\outside" "" "."; do
	sed -i "s|model-00002-of-00003.safetensors|$path|" "$index"
	shards "shard path '$path'" 'index|safetensors'
done
rm "$folder/model-00002-of-00003.safetensors"
ln -s "$work/outside.safetensors" "$folder/model-00002-of-00003.safetensors"
succeeds "shard behind a link, as model caches keep them" 10 run "$folder" --tokens 1 --json -n 2 && ok "shard behind a link, as model caches keep them"
rm "$folder/model-00002-of-00003.safetensors"
cp "$work/outside.safetensors" "$folder/model-00002-of-00003.safetensors"
sed -i 's/model.norm.weight": "model-00003/model.norm.weight": "model-00001/' "$index"
shards "tensor in another file than the index says" 'norm'
echo '{"weight_map": 3}' >"$index"
shards "weight_map is a number" 'index'
echo '{' >"$index"
shards "index is no JSON" 'index'
sed -i 's/"model.norm.weight": "[^"]*"/"model.norm.weight": 7/' "$index"
shards "file name is a number" 'index'
rm -rf "$folder"
finish
