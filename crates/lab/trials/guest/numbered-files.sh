# numbered-files write DIR: writes files of numbered lines until /run/files.stop. Each is on the disk under its name
# before the next one is begun; then the number that it begins with is in /run/written.
#
# numbered-files check DIR N: holds them to that N was written: every file that is as new or newer is there, and whole.
slots=100
lines=5000

case $1 in
write)
	number=0
	until [ -e /run/files.stop ]; do
		number=$((number + 1))
		seq "$number" $((number + lines)) >"$2/new" && sync && mv "$2/new" "$2/$((number % slots))" && sync || exit
		echo "$number" >/run/written.new && mv /run/written.new /run/written || exit
	done
	;;
check)
	oldest=$(($3 > slots ? $3 - slots + 1 : 1))
	for number in $(seq "$oldest" "$3"); do
		file=$2/$((number % slots))
		first=$(head -n 1 "$file") || exit
		if [ "$first" -lt "$number" ] || [ $((first % slots)) != $((number % slots)) ]; then
			echo "$file begins with $first, and $number was written there"
			exit 1
		fi
		seq "$first" $((first + lines)) | cmp - "$file" || exit
	done
	;;
esac
